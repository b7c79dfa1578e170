#!/usr/bin/env bash
# Real SSH hosts on one machine. Each is a network, mount, UTS and PID namespace with a home, a /tmp, a
# /run, a host key and an sshd of its own; the rest of the file system is this machine's. Needs root, or
# sudo without a password.
#
#   hosts.sh DIR up N [--bind SOURCE NAME]... [--env I NAME=VALUE]...
#                              hosts 1..N with state in DIR. The folder SOURCE appears read-only as
#                              /opt/NAME on every host, DIR/I/lab as /opt/lab on host I; --env goes into
#                              its sessions
#   hosts.sh DIR address I     its address (port 22)
#   hosts.sh DIR server        an address of this machine that hosts reach and that is nobody's way to them
#   hosts.sh DIR hide I | show I
#                              makes the host find no way to that address, or find it again
#   hosts.sh DIR run I COMMAND [ARGUMENT...]
#                              runs a command inside, without SSH
#   hosts.sh DIR pids I        process ids (this machine's), one a line, of all but the harness's own
#   hosts.sh DIR processes I   the same with their command lines
#   hosts.sh DIR ports I       addresses that something listens on, the harness's sshd left out
#   hosts.sh DIR rekey I       gives the host another host key
#   hosts.sh DIR cut I | heal I
#                              takes the host's cable out, or puts it back; its processes live on
#   hosts.sh DIR slow I MS [LOSS_PERCENT [KBIT]] | fast I
#                              makes the host's cable that late each way, lossy and slow, or good again
#   hosts.sh DIR freeze I | thaw I
#                              stops the host's sshd without closing anything, or lets it go on
#   hosts.sh DIR halt I        ends everything on the host; its address refuses connections
#   hosts.sh DIR down          ends everything and removes DIR
#   hosts.sh sweep             the same for every lab whose owner is gone
#   hosts.sh check             whether this machine can do all that
#
# DIR then holds id_ed25519 (the login key of root on every host), known_hosts and ssh_config.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
registry=/var/tmp/flock-labs # one file per lab: folder, owner's pid, owner's start time

fail() { echo "hosts.sh: $*" >&2; exit 1; }

if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || fail "the test hosts are network namespaces: run as root, or allow sudo without a password"
    exec sudo -n --preserve-env=PATH,FLOCK_LAB_OWNER "$0" "$@"
fi

alive() { [ -d "/proc/$1" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
# Waits up to five seconds until a command succeeds.
wait_until() { for _ in $(seq 250); do "$@" && return 0; sleep 0.02; done; return 1; }
gone() { ! alive "$1"; }
# Whether a pattern is in the input, all of which is read: `grep -q` ends at the first match, and what still writes then
# fails the pipe.
has() { grep "$@" >/dev/null; }

check() {
    local command
    for command in sshd:openssh-server ssh-keygen:openssh-client ip:iproute2 ss:iproute2 unshare:util-linux hostname:hostname; do
        command -v "${command%%:*}" >/dev/null || fail "no ${command%%:*} (package ${command#*:}); scripts/setup installs it"
    done
    local name=flock-check-$$
    ip netns add "$name" 2>/dev/null || fail "this machine allows no network namespaces (a container without CAP_SYS_ADMIN?)"
    ip netns del "$name"
}

load() { # the lab's own names
    [ -f "$dir/settings" ] || fail "$dir is no lab"
    # shellcheck disable=SC1091
    . "$dir/settings"
}
space() { echo "$prefix-$1"; }
cable() { echo "${prefix}v$1"; }
address() { echo "$subnet.$((10 + $1))"; }

# A /24 that nothing here uses, from the owner's pid so that labs side by side rarely even try the same.
free_subnet() {
    local try candidate
    for try in $(seq 0 63); do
        candidate=10.$((64 + (owner / 250 + try) % 64)).$((1 + owner % 250))
        ip -4 -o addr show | has -F " $candidate." || { echo "$candidate"; return; }
    done
    fail "no free subnet"
}

host_key() { # a new one for host I
    rm -f "$dir/$1/run/ssh/host_key" "$dir/$1/run/ssh/host_key.pub"
    ssh-keygen -q -t ed25519 -N '' -C "$(space "$1")" -f "$dir/$1/run/ssh/host_key"
}

prepare() {
    local i=$1 home
    home=$dir/$i
    mkdir -p "$home"/{home/.ssh,run/ssh,run/sshd,tmp,opt,lab}
    chmod 755 "$home" "$home/run" "$home/run/sshd" "$home/lab"
    chmod 700 "$home/home" "$home/home/.ssh"
    chmod 1777 "$home/tmp"
    cp "$dir/id_ed25519.pub" "$home/home/.ssh/authorized_keys"
    host_key "$i"
    printf '%s %s\n' "$(address "$i")" "$(cut -d' ' -f1,2 "$home/run/ssh/host_key.pub")" >>"$dir/known_hosts"
    {
        printf 'Port 22\nListenAddress %s\n' "$(address "$i")"
        printf 'HostKey /run/ssh/host_key\nPidFile /run/ssh/sshd.pid\nAuthorizedKeysFile .ssh/authorized_keys\n'
        printf 'PasswordAuthentication no\nKbdInteractiveAuthentication no\nPubkeyAuthentication yes\n'
        printf 'PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nUseDNS no\nPrintMotd no\n'
        printf 'MaxStartups 100:30:200\nMaxSessions 100\nLogLevel VERBOSE\n'
        # sshd takes one SetEnv line.
        printf 'SetEnv FLOCK_LAB_HOST=%s' "$(space "$i")"
        local entry
        for entry in "${environment[@]}"; do
            [ "${entry%% *}" = "$i" ] && printf ' "%s"' "${entry#* }"
        done
        printf '\n'
    } >"$home/run/ssh/sshd_config"
    printf 'Host host-%s\n  HostName %s\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n  StrictHostKeyChecking yes\n\n' \
        "$i" "$(address "$i")" "$dir/id_ed25519" "$dir/known_hosts" >>"$dir/ssh_config"

    ip netns add "$(space "$i")"
    ip link add "$(cable "$i")" type veth peer name eth0 netns "$(space "$i")"
    ip link set "$(cable "$i")" master "$bridge" up
    ip -n "$(space "$i")" link set lo up
    ip -n "$(space "$i")" addr add "$(address "$i")/24" dev eth0
    ip -n "$(space "$i")" link set eth0 up
}

# Starts the host's sshd as process 1 of its namespaces. Mounts are private, so nothing of them is seen
# outside, and the last unshare's end takes every process with it.
boot() {
    local i=$1
    # shellcheck disable=SC2016 # for the inner shell
    ip netns exec "$(space "$i")" unshare --mount --uts --pid --fork --mount-proc --kill-child=SIGKILL --propagation private \
        bash -c '
            set -e
            home=$1 name=$2
            shift 2
            hostname "$name"
            while [ $# -gt 0 ]; do
                mkdir -p "$home/opt/$2"
                mount --bind "$1" "$home/opt/$2"
                mount -o remount,bind,ro "$home/opt/$2"
                shift 2
            done
            mkdir -p "$home/opt/lab"
            mount --bind "$home/lab" "$home/opt/lab"
            mount --rbind "$home/opt" /opt
            mount --bind "$home/home" /root
            mount --bind "$home/run" /run
            mount --bind "$home/tmp" /tmp # last: the lab itself may lie in there
            cd /
            exec env -i HOME=/root USER=root LOGNAME=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
                "$(command -v sshd)" -D -e -f /run/ssh/sshd_config
        ' host "$dir/$i" "$(space "$i")" "${binds[@]}" </dev/null >>"$dir/$i/sshd.log" 2>&1 &
    echo $! >"$dir/$i/init.pid"
    disown
}

answers() { ip netns exec "$(space "$1")" ss -Hltn "sport = :22" 2>/dev/null | has .; }

up() {
    local count=${1:?how many hosts} i
    shift
    binds=()
    environment=()
    while [ $# -gt 0 ]; do
        case $1 in
        --bind) binds+=("$(realpath "$2")" "$3"); shift 3 ;;
        --env) environment+=("$2 $3"); shift 3 ;;
        *) fail "unknown option $1" ;;
        esac
    done
    [ ! -e "$dir/settings" ] || fail "$dir is a lab already"
    check
    owner=${FLOCK_LAB_OWNER:-$PPID}
    mkdir -p "$dir" "$registry"
    chmod 755 "$dir"
    # Interface names have at most 15 characters. A second lab of the same owner gets another letter.
    local letter
    for letter in a b c d e f g h; do
        prefix=fl$owner$letter
        ip link show "${prefix}br" >/dev/null 2>&1 || break
    done
    bridge=${prefix}br
    subnet=$(free_subnet)
    printf 'prefix=%s\nbridge=%s\nsubnet=%s\ncount=%s\n' "$prefix" "$bridge" "$subnet" "$count" >"$dir/settings"
    # Whoever takes the last other lab down removes the empty folder, at any moment.
    local attempt
    for attempt in 1 2 3 4 5; do
        mkdir -p "$registry"
        { printf '%s\n%s\n%s\n' "$dir" "$owner" "$(start_time "$owner")" >"$registry/$prefix"; } 2>/dev/null && break
        [ "$attempt" -lt 5 ] || fail "cannot note the lab in $registry"
    done

    ssh-keygen -q -t ed25519 -N '' -C flock-test -f "$dir/id_ed25519"
    : >"$dir/known_hosts"
    : >"$dir/ssh_config"
    ip link add "$bridge" type bridge
    ip addr add "$subnet.1/24" dev "$bridge"
    ip addr add "$subnet.2/24" dev "$bridge"
    ip link set "$bridge" up
    for i in $(seq "$count"); do prepare "$i"; done
    [ -z "${SUDO_UID:-}" ] || chown "$SUDO_UID" "$dir"/{id_ed25519,id_ed25519.pub,known_hosts,ssh_config} "$dir"/*/lab
    for i in $(seq "$count"); do boot "$i"; done
    for i in $(seq "$count"); do
        wait_until answers "$i" || { tail -n 5 "$dir/$i/sshd.log" >&2; fail "host $i did not come up"; }
    done
}

# The processes of a host: those of its network namespace but the harness's unshare and sshd.
pids() {
    local pid init
    init=$(cat "$dir/$1/init.pid")
    for pid in $(ip netns pids "$(space "$1")" 2>/dev/null); do
        [ "$pid" = "$init" ] && continue
        alive "$pid" || continue
        case $(cat "/proc/$pid/comm" 2>/dev/null) in '' | sshd | sshd-session | sshd-auth | unshare) continue ;; esac
        echo "$pid"
    done
}

processes() {
    local pid
    for pid in $(pids "$1"); do
        printf '%s %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
    done
}

inside() { # inside I COMMAND...: enters all of the host's namespaces
    local i=$1 init child
    shift
    init=$(cat "$dir/$i/init.pid")
    child=$(cat "/proc/$init/task/$init/children" 2>/dev/null)
    [ -n "${child// /}" ] || fail "host $i is not up"
    exec nsenter --target "${child%% *}" --net --mount --uts --pid --wd=/ -- env -i HOME=/root USER=root \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

ports() { ip netns exec "$(space "$1")" ss -Hltn | awk '{ print $4 }' | grep -v ':22$' || true; }

sshd_of() { # the first process of host I
    local init child
    init=$(cat "$dir/$1/init.pid")
    child=$(cat "/proc/$init/task/$init/children" 2>/dev/null)
    [ -n "${child// /}" ] || fail "host $1 is not up"
    echo "${child%% *}"
}

carries() { grep -qs ready "$dir/$1/cable.log"; }

slow() {
    local i=$1
    fast "$i"
    command -v python3 >/dev/null || fail "no python3, which slow cables are made of"
    : >"$dir/$i/cable.log"
    python3 "$here/cable.py" "$(cable "$i")" "$bridge" "${prefix}x$i" "${prefix}y$i" "$2" "${3:-0}" "${4:-0}" \
        </dev/null >>"$dir/$i/cable.log" 2>&1 &
    echo $! >"$dir/$i/cable.pid"
    disown
    wait_until carries "$i" || fail "the slow cable does not carry: $(tail -n 1 "$dir/$i/cable.log")"
}

fast() {
    local file=$dir/$1/cable.pid pid
    [ -f "$file" ] || return 0
    pid=$(cat "$file")
    rm -f "$file"
    # Only our own: the process whose arguments name this host's cable.
    if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | has -F "cable.py $(cable "$1") "; then
        kill -TERM "$pid" 2>/dev/null || true
        wait_until gone "$pid" || true
    fi
}

offers_new_key() {
    ssh-keyscan -T 1 -t ed25519 "$(address "$1")" 2>/dev/null | has -F "$(cut -d' ' -f2 "$dir/$1/run/ssh/host_key.pub")"
}

rekey() {
    local i=$1 init child
    host_key "$i"
    init=$(cat "$dir/$i/init.pid")
    child=$(cat "/proc/$init/task/$init/children")
    kill -HUP "${child%% *}" # sshd reads its files again and keeps its process id
    wait_until offers_new_key "$i" || fail "host $i does not offer its new key"
}

down() {
    local i pid
    [ -f "$dir/settings" ] || return 0
    load
    for i in $(seq "$count"); do
        fast "$i"
        if [ -f "$dir/$i/init.pid" ]; then
            pid=$(cat "$dir/$i/init.pid")
            # Only our own: the process whose arguments name this host's folder.
            if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | has -F " $dir/$i "; then
                kill -KILL "$pid" 2>/dev/null || true
                wait_until gone "$pid" || true
            fi
        fi
        for pid in $(ip netns pids "$(space "$i")" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null || true
            wait_until gone "$pid" || true
        done
        ip netns del "$(space "$i")" 2>/dev/null || true
        ip link del "$(cable "$i")" 2>/dev/null || true
    done
    ip link del "$bridge" 2>/dev/null || true
    rm -f "$registry/$prefix"
    rmdir "$registry" 2>/dev/null || true
    rm -rf "$dir"
}

sweep() {
    local file pid started
    for file in "$registry"/*; do
        [ -f "$file" ] || continue
        { read -r dir; read -r pid; read -r started; } <"$file"
        if ! alive "$pid" || [ "$(start_time "$pid")" != "$started" ]; then
            echo "hosts.sh: removing $dir, which process $pid left behind" >&2
            if [ -f "$dir/settings" ]; then (down); else rm -f "$file"; fi
        fi
    done
}

case ${1:-} in
check | sweep) "$1"; exit ;;
/*) ;;
*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 64 ;;
esac
dir=$1
shift
[ "${1:-}" = up ] || [ "${1:-}" = down ] || load
case ${1:-} in
up) shift; up "$@" ;;
down) down ;;
address) address "${2:?host}" ;;
server) echo "$subnet.2" ;;
hide) ip -n "$(space "${2:?host}")" route add unreachable "$subnet.2/32" ;;
show) ip -n "$(space "${2:?host}")" route del unreachable "$subnet.2/32" ;;
run) shift; inside "$@" ;;
pids) pids "${2:?host}" ;;
processes) processes "${2:?host}" ;;
ports) ports "${2:?host}" ;;
rekey) rekey "${2:?host}" ;;
cut) ip link set "$(cable "${2:?host}")" down ;;
heal) ip link set "$(cable "${2:?host}")" up ;;
slow) slow "${2:?host}" "${3:?milliseconds}" "${4:-0}" "${5:-0}" ;;
fast) fast "${2:?host}" ;;
freeze) kill -STOP "$(sshd_of "${2:?host}")" ;;
thaw) kill -CONT "$(sshd_of "${2:?host}")" ;;
halt) kill -KILL "$(sshd_of "${2:?host}")" && wait_until gone "$(cat "$dir/${2:?host}/init.pid")" ;;
*) fail "unknown command \"${1:-}\"" ;;
esac
