#!/usr/bin/env python3
"""A hub that behaves like the Hugging Face one, as far as model repositories are read from it. Standard library only.

    hub.py --root FOLDER [--bind ADDRESS] [--port N] [--cdn-port N] [--cert PEM --key PEM] [--log FILE] [--page N]

It prints `listening BASE CDN-BASE CONTROL-BASE` (addresses without a path) once it listens; port 0 takes a free one.
The second is the content network that large files are redirected to: it knows signed addresses and refuses
`Authorization`. The third, on this machine's loopback and without TLS, is for whoever tests.

Repositories are folders ROOT/OWNER/NAME. All regular files in one whose path has no part that begins with `.flock` and
is not `.repo.json` are the repository's files, at every commit; a folder ROOT/OWNER/NAME/.flock/COMMIT replaces them
at that commit. `.repo.json` says what else is known, all of it optional:

    commit       head of main, 40 hex digits (else derived from the name)
    branches     {"dev": COMMIT}, tags {"v1": COMMIT}, commits [COMMIT] that are nothing's head any more
    private, gated (false, "auto", "manual"), gated_list (the tree is gated too), disabled
    access       tokens whose account may read it where it is private or gated
    license, license_name, base_model (text or list), relation ("quantized"), tags
    renamed_from [OWNER/NAME]
    lfs          names in large-file storage beside those that end like weights or exceed 10 MiB
    xet          true: the tree names Xet hashes and answers carry X-Xet-Hash, as the real hub does
    files        {"model.gguf": {"size": BYTES, "seed": N, "header": PATH, "sha256": HEX}}: content that is made up
                 as it is sent, the bytes of the file `header` (relative to .flock/) first. Up to 2 GiB its digest is
                 the true one; beyond, one is made up
    many         {"count": 10000, "size": 10, "folder": "shards"}: so many small files
    entries      further entries of the tree, as they are

A token is known if it begins with `hf_`; any other is refused. On the third address, `POST /faults` adds faults (a JSON
list) and `DELETE /faults` ends them; `GET /log` gives the requests that have ended, as --log does, one JSON object a
line: {time, server, method, path, query, range, user_agent, authorization, status, bytes, at_once}, the last being how
many requests were being answered when it came, itself among them. Who has had an answer whole finds its request there.

A fault is {"kind": KIND, "on": ROUTE, "path": REGEX, "times": N, "after": N, …}; ROUTE is info, tree, paths-info,
search, resolve, small (a small file's bytes), cdn (a large file's) or any. Kinds:

    drop {bytes, reset}      the connection ends after so many bytes of the answer's body; -1: before its first line
    headers                  the connection ends in the middle of the header
    length {delta}           Content-Length is wrong by so much
    alter {at}               the file's byte at this offset is another
    status {status, headers, body}
    trickle {rate}           so many bytes of the body a second
    stall {bytes}            nothing more after so many bytes, the connection stays; -1: not even a first line
    loop                     redirects to itself
    html                     a login page with 200
    whole                    ignores Range
    shift {by}               answers another range than the one asked for
    short {bytes}            answers a range with fewer bytes than asked for, and says so
    unsaid                   206 without Content-Range
    link {url}               a Link header of this address on a list
    json {body}              this JSON in place of the true one
"""

import argparse
import base64
import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import secrets
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
import urllib.parse

WEIGHTS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".onnx", ".model", ".h5", ".msgpack")
LARGE = 10 << 20
HASHED = 2 << 30
BLOCK = 1 << 20
CHUNK = 128 << 10

ARGUMENTS = None
SECRET = secrets.token_hex(16)
LOCK = threading.Lock()
FAULTS = []
LOG = []
LOG_FILE = None
DIGESTS = {}
BLOCKS = {}
REPOSITORIES = {}
CDN_PORT = 0
AT_ONCE = 0
# Requests whose last byte is on its way, or has come, and which are not in the log yet.
ENDING = 0
NOTED = threading.Condition(LOCK)


def sha1(data):
    return hashlib.sha1(data).hexdigest()


class DiskFile:
    def __init__(self, path):
        self.path = path
        self.size = os.path.getsize(path)

    def read(self, offset, length):
        with open(self.path, "rb") as source:
            source.seek(offset)
            return source.read(length)

    def key(self):
        status = os.stat(self.path)
        return (self.path, status.st_size, status.st_mtime_ns)


class MadeFile:
    """Bytes that a seed decides: blocks of one random block, each rotated differently and numbered."""

    def __init__(self, size, seed, header=b"", sha256=None):
        self.size, self.seed, self.header, self.sha256 = size, seed, header, sha256
        self.last = (-1, b"")

    def block(self, index):
        last, block = self.last
        if last != index:
            base = BLOCKS.get(self.seed)
            if base is None:
                base = BLOCKS[self.seed] = random.Random(self.seed).randbytes(BLOCK)
            turn = index * 4099 % (BLOCK - 8)
            block = struct.pack("<Q", index) + base[turn + 8 :] + base[:turn]
            self.last = (index, block)
        return block

    def read(self, offset, length):
        length = max(0, min(length, self.size - offset))
        parts = []
        while length > 0:
            if offset < len(self.header):
                part = self.header[offset : offset + length]
            else:
                inside = offset % BLOCK
                part = self.block(offset // BLOCK)[inside : inside + length]
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def key(self):
        return (self.size, self.seed, hashlib.sha256(self.header).hexdigest())


class SmallFile:
    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read(self, offset, length):
        return self.data[offset : offset + length]

    def key(self):
        return self.data


def digest(file):
    """(sha256, git's id) of a file's content."""
    if isinstance(file, MadeFile) and (file.sha256 or file.size > HASHED):
        made_up = hashlib.sha256(repr(file.key()).encode()).hexdigest()
        return file.sha256 or made_up, made_up[:40]
    key = file.key()
    with LOCK:
        if key in DIGESTS:
            return DIGESTS[key]
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % file.size)
    offset = 0
    while offset < file.size:
        data = file.read(offset, BLOCK)
        sha256.update(data)
        git.update(data)
        offset += len(data)
    found = sha256.hexdigest(), git.hexdigest()
    with LOCK:
        DIGESTS[key] = found
    return found


class Repository:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        try:
            with open(os.path.join(folder, ".repo.json"), encoding="utf-8") as source:
                self.card = json.load(source)
        except FileNotFoundError:
            self.card = {}
        self.head = self.card.get("commit") or sha1(name.encode())
        self.listings = {}

    def commit(self, revision):
        """The commit that a revision names, or None."""
        refs = {"main": self.head, "HEAD": self.head, **self.card.get("branches", {}), **self.card.get("tags", {})}
        if self.card.get("branches", {}).get("main"):
            refs["main"] = self.card["branches"]["main"]
        commit = refs.get(revision, revision)
        known = {self.head, *refs.values(), *self.card.get("commits", [])}
        return commit if commit in known else None

    def files(self, commit):
        if commit not in self.listings:
            self.listings[commit] = dict(sorted(self.look(commit)))
        return self.listings[commit]

    def look(self, commit):
        folder = os.path.join(self.folder, ".flock", commit)
        other = os.path.isdir(folder)
        if not other:
            folder = self.folder
        for base, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".flock")]
            for name in names:
                path = os.path.join(base, name)
                inside = os.path.relpath(path, folder)
                if inside != ".repo.json":
                    yield inside, DiskFile(path)
        if other:
            return
        for name, made in self.card.get("files", {}).items():
            header = b""
            if made.get("header"):
                with open(os.path.join(self.folder, ".flock", made["header"]), "rb") as source:
                    header = source.read()
            yield name, MadeFile(made["size"], made.get("seed", 0), header, made.get("sha256"))
        many = self.card.get("many")
        if many:
            for index in range(many["count"]):
                data = (b"%010d" % index).ljust(many.get("size", 10), b"x")
                yield f"{many.get('folder', 'many')}/file-{index:06}.txt", SmallFile(data)

    def large(self, name, file):
        return name.endswith(WEIGHTS) or file.size > LARGE or name in self.card.get("lfs", [])

    def entry(self, name, file):
        if not self.large(name, file):
            git = sha1(b"blob %d\0" % file.size + file.data) if isinstance(file, SmallFile) else digest(file)[1]
            return {"type": "file", "oid": git, "size": file.size, "path": name}
        sha256 = digest(file)[0]
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {file.size}\n".encode()
        entry = {
            "type": "file",
            "oid": sha1(b"blob %d\0" % len(pointer) + pointer),
            "size": file.size,
            "lfs": {"oid": sha256, "size": file.size, "pointerSize": len(pointer)},
            "path": name,
        }
        if self.card.get("xet"):
            entry["xetHash"] = hashlib.sha256(sha256.encode()).hexdigest()
        return entry

    def tree(self, commit, inside, recursive):
        entries, folders = [], set()
        prefix = f"{inside}/" if inside else ""
        for name, file in self.files(commit).items():
            if not name.startswith(prefix):
                continue
            parts = name[len(prefix) :].split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                folders.add(prefix + "/".join(parts[:depth]))
            if recursive or len(parts) == 1:
                entries.append((name, file))
        listed = [{"type": "directory", "oid": sha1(name.encode()), "size": 0, "path": name} for name in sorted(folders)]
        return listed + entries + self.card.get("entries", [])

    def bases(self):
        base = self.card.get("base_model", [])
        return [base] if isinstance(base, str) else base

    def tags(self):
        tags = list(self.card.get("tags", []))
        if "license" in self.card:
            tags.append(f"license:{self.card['license']}")
        for base in self.bases():
            tags.append(f"base_model:{base}")
            if "relation" in self.card:
                tags.append(f"base_model:{self.card['relation']}:{base}")
        return tags

    def info(self, commit):
        card = {key: self.card[key] for key in ("license", "license_name", "base_model") if key in self.card}
        info = {
            "_id": sha1(self.name.encode())[:24],
            "id": self.name,
            "modelId": self.name,
            "author": self.name.split("/")[0],
            "sha": commit,
            "private": self.card.get("private", False),
            "gated": self.card.get("gated", False),
            "disabled": False,
            "tags": self.tags(),
            "downloads": 7,
            "likes": 1,
            "lastModified": "2026-01-02T03:04:05.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "spaces": [],
            "usedStorage": sum(file.size for file in self.files(commit).values()),
        }
        if card:
            info["cardData"] = card
        return info


def repositories():
    """All repositories by name, read again when a folder or `.repo.json` has changed."""
    found = {}
    for owner in sorted(os.listdir(ARGUMENTS.root)):
        folder = os.path.join(ARGUMENTS.root, owner)
        if owner.startswith(".") or not os.path.isdir(folder):
            continue
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if not os.path.isdir(path):
                continue
            stamp = [os.stat(path).st_mtime_ns]
            with contextlib.suppress(FileNotFoundError):
                stamp.append(os.stat(os.path.join(path, ".repo.json")).st_mtime_ns)
            full = f"{owner}/{name}"
            with LOCK:
                known = REPOSITORIES.get(full)
            if not known or known[0] != stamp:
                known = (stamp, Repository(full, path))
                with LOCK:
                    REPOSITORIES[full] = known
            found[full] = known[1]
    return found


def take_faults(route, path):
    """The faults that this request has."""
    taken = []
    with LOCK:
        for fault in FAULTS:
            if fault.get("on", "any") not in (route, "any") or not re.search(fault.get("path", ""), path):
                continue
            if fault.get("after", 0) > 0:
                fault["after"] -= 1
            elif fault.get("times", 1 << 60) > 0:
                fault["times"] = fault.get("times", 1 << 60) - 1
                taken.append(fault)
    return taken


class Ended(Exception):
    """The connection was ended on purpose."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "stand-in-hub", ""
    wbufsize = 0
    timeout = 120

    def setup(self):
        # What was sent is what was read, but for this much.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        self.sent, self.status, self.faults, self.command = 0, None, [], None
        self.at_once, self.counted, self.ending = 0, False, False
        try:
            super().handle_one_request()
        except (Ended, OSError, ssl.SSLError):
            self.close_connection = True
        if self.command and self.server.kind != "control":
            self.leave()
            self.note()

    def parse_request(self):
        parsed = super().parse_request()
        self.started = time.time()
        if self.command and self.server.kind != "control":
            self.at_once, self.counted = self.count(1), True
        return parsed

    def count(self, by):
        global AT_ONCE
        with LOCK:
            AT_ONCE += by
            return AT_ONCE

    def leave(self):
        """Before the last byte, after which the next request may come at once."""
        if self.counted:
            self.counted = False
            self.count(-1)
            self.is_ending(True)

    def is_ending(self, ending):
        global ENDING
        with NOTED:
            ENDING += ending - self.ending
            self.ending = ending
            NOTED.notify_all()

    def note(self):
        path = urllib.parse.urlsplit(self.path)
        line = {
            "time": round(self.started, 3),
            "server": self.server.kind,
            "method": self.command,
            "path": urllib.parse.unquote(path.path),
            "query": path.query,
            "range": self.headers.get("Range"),
            "user_agent": self.headers.get("User-Agent"),
            "authorization": "Authorization" in self.headers,
            "status": self.status,
            "bytes": self.sent,
            "at_once": self.at_once,
        }
        with LOCK:
            LOG.append(line)
            if LOG_FILE:
                LOG_FILE.write(json.dumps(line) + "\n")
                LOG_FILE.flush()
        self.is_ending(False)

    # Answers.

    def fault(self, kind):
        return next((fault for fault in self.faults if fault["kind"] == kind), None)

    def end(self, reset=False):
        if reset:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        raise Ended

    def begin(self, route):
        """Takes the faults of a route, and carries out those that need nothing of the true answer."""
        self.faults = take_faults(route, urllib.parse.unquote(self.path))
        drop, stall = self.fault("drop"), self.fault("stall")
        if drop and drop.get("bytes", 0) < 0:
            self.end(drop.get("reset", False))
        if stall and stall.get("bytes", 0) < 0:
            self.hang()
        if self.fault("headers"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
            self.end()
        if status := self.fault("status"):
            body = status.get("body", "")
            body = (json.dumps(body) if not isinstance(body, str) else body).encode()
            return self.answer(status["status"], body, {"Content-Type": "application/json", **status.get("headers", {})})
        if self.fault("loop"):
            return self.answer(302, b"", {"Location": self.path})
        if self.fault("html"):
            page = b"<!DOCTYPE html><html><title>Sign in to the network</title><form></form></html>\n"
            return self.answer(200, page, {"Content-Type": "text/html; charset=utf-8"})
        return False

    def hang(self):
        """Until the other side has had enough."""
        self.request.settimeout(0.2)
        end = time.time() + 120
        while time.time() < end:
            try:
                if not self.request.recv(1):
                    break
            except (TimeoutError, ssl.SSLWantReadError):
                continue
            except OSError:
                break
        self.end()

    def answer(self, status, body, headers):
        return self.stream(status, len(body), lambda offset, length: body[offset : offset + length], headers)

    def stream(self, status, size, read, headers):
        """Sends an answer of `size` bytes, which `read(offset, length)` gives."""
        self.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        wrong = self.fault("length")
        self.send_header("Content-Length", str(max(0, size + (wrong.get("delta", 1) if wrong else 0))))
        if self.command == "HEAD" or size == 0 or 300 <= status < 400:
            self.leave()
        self.end_headers()
        if self.command == "HEAD" or status == 304:
            return True
        drop, stall, trickle = self.fault("drop"), self.fault("stall"), self.fault("trickle")
        ends = [fault.get("bytes", 0) for fault in (drop, stall) if fault]
        until = min([size, *ends])
        rate = trickle.get("rate", 1) if trickle else None
        while self.sent < until:
            step = min(CHUNK, until - self.sent)
            if rate:
                step = max(1, min(step, rate // 10))
            data = read(self.sent, step)
            if not data:
                break
            if rate:
                time.sleep(len(data) / rate)
            if self.sent + len(data) >= size:
                self.leave()
            self.wfile.write(data)
            self.sent += len(data)
        if stall and self.sent >= stall.get("bytes", 0):
            self.hang()
        if drop or wrong:
            self.end(bool(drop and drop.get("reset", False)))
        return True

    def json(self, value, headers=None, status=200):
        other = self.fault("json")
        body = json.dumps(other["body"] if other else value).encode()
        return self.answer(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})

    def refuse(self, status, code, message, error=None):
        headers = {"X-Error-Message": message, "Content-Type": "application/json; charset=utf-8"}
        if code:
            headers["X-Error-Code"] = code
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="Authentication required", charset="UTF-8"'
        return self.answer(status, json.dumps({"error": error or message}).encode(), headers)

    def file(self, file, headers):
        """Sends a file or the range of it that was asked for."""
        size, status, first, last = file.size, 200, 0, file.size - 1
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked and asked.group(0) != "bytes=-" and not self.fault("whole"):
            if asked[1] == "":
                first, last = max(0, size - int(asked[2])), size - 1
            else:
                first, last = int(asked[1]), min(size - 1, int(asked[2]) if asked[2] else size - 1)
            if first >= size or first > last:
                return self.answer(416, b"", {"Content-Range": f"bytes */{size}", "Content-Type": "text/plain"})
            status = 206
        if short := self.fault("short"):
            last = min(last, first + short["bytes"] - 1)
        if shift := self.fault("shift"):
            first, last = first + shift["by"], last + shift["by"]
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
        if status == 206 and not self.fault("unsaid"):
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        altered = self.fault("alter")

        def read(offset, length):
            data = file.read(first + offset, min(length, last - first + 1 - offset))
            at = altered.get("at", 0) - first - offset if altered else -1
            if 0 <= at < len(data):
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            return data

        return self.stream(status, last - first + 1, read, headers)

    # Routes.

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        raw = url.path.strip("/").split("/")
        parts = [urllib.parse.unquote(part) for part in raw]
        query = urllib.parse.parse_qs(url.query)
        if self.server.kind == "cdn":
            return self.cdn(parts, query)
        if self.server.kind == "control":
            return self.control()
        if not self.known_token():
            self.faults = []
            return self.refuse(401, None, "Invalid credentials in Authorization header")
        if parts == ["api", "models"]:
            return self.search(query)
        if parts[:2] == ["api", "models"] and len(parts) in (3, 4):
            return self.info("/".join(parts[2:]), None, query, parts)
        if parts[:2] == ["api", "models"] and len(parts) == 6 and parts[4] == "revision":
            return self.info("/".join(parts[2:4]), parts[5], query, parts)
        if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "tree":
            return self.tree("/".join(parts[2:4]), parts[5], "/".join(parts[6:]), query)
        if parts[:3] == ["api", "resolve-cache", "models"] and len(parts) >= 7:
            return self.small("/".join(parts[3:5]), parts[5], "/".join(parts[6:]))
        for owned in (2, 1):
            if len(parts) >= owned + 3 and parts[owned] == "resolve":
                return self.resolve("/".join(parts[:owned]), parts[owned + 1], "/".join(parts[owned + 2 :]))
        return self.answer(404, b"Not Found", {"Content-Type": "text/plain"})

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [urllib.parse.unquote(part) for part in urllib.parse.urlsplit(self.path).path.strip("/").split("/")]
        if self.server.kind == "control":
            with LOCK:
                FAULTS.extend(json.loads(body))
            return self.json({})
        if not self.known_token():
            return self.refuse(401, None, "Invalid credentials in Authorization header")
        if parts[:2] == ["api", "models"] and len(parts) == 6 and parts[4] == "paths-info":
            return self.paths_info("/".join(parts[2:4]), parts[5], body.decode())
        return self.answer(404, b"Not Found", {"Content-Type": "text/plain"})

    def do_DELETE(self):
        if self.server.kind == "control":
            with LOCK:
                FAULTS.clear()
        return self.json({})

    def control(self):
        with NOTED:
            NOTED.wait_for(lambda: ENDING == 0, timeout=5)
            lines = "".join(json.dumps(line) + "\n" for line in LOG)
        return self.answer(200, lines.encode(), {"Content-Type": "application/jsonl"})

    def token(self):
        header = self.headers.get("Authorization", "")
        return header.removeprefix("Bearer ") if header.startswith("Bearer ") else None

    def known_token(self):
        return "Authorization" not in self.headers or (self.token() or "").startswith("hf_")

    def base(self):
        scheme = "https" if ARGUMENTS.cert else "http"
        return f"{scheme}://{self.headers.get('Host')}"

    def find(self, name):
        """The repository, or None after its refusal or redirect was sent."""
        known = repositories()
        repository = known.get(name)
        if repository is None:
            for other in known.values():
                spelled = other.name.lower() == name.lower()
                if spelled or name in other.card.get("renamed_from", []):
                    target = self.path.replace(urllib.parse.quote(name), urllib.parse.quote(other.name), 1)
                    moved = f"Temporary Redirect. Redirecting to {target}".encode()
                    self.answer(307, moved, {"Location": target, "Content-Type": "text/plain"})
                    return None
        hidden = repository and repository.card.get("private") and not self.may(repository)
        if repository is None or hidden:
            # Without a token nobody learns whether there is one.
            status, error = (404, None) if self.token() else (401, "Invalid username or password.")
            self.refuse(status, "RepoNotFound", "Repository not found", error)
            return None
        if repository.card.get("disabled"):
            self.refuse(403, None, "Access to this resource is disabled.")
            return None
        return repository

    def may(self, repository):
        return self.token() in repository.card.get("access", [])

    def gate(self, repository):
        """Whether a gate let the request through; otherwise its refusal was sent."""
        if not repository.card.get("gated") or self.may(repository):
            return True
        restricted = f"Access to model {repository.name} is restricted"
        if self.token():
            page = f"{self.base()}/{repository.name}"
            message = f"{restricted} and you are not in the authorized list. Visit {page} to ask for access."
            self.refuse(403, "GatedRepo", message)
        else:
            message = f"{restricted}. You must have access to it and be authenticated to access it. Please log in."
            self.refuse(401, "GatedRepo", message)
        return False

    def at(self, repository, revision):
        commit = repository.commit(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def info(self, name, revision, query, parts):
        if self.begin("info"):
            return True
        repository = self.find(name)
        if not repository:
            return True
        commit = self.at(repository, revision or "main")
        if not commit:
            return True
        info = repository.info(commit)
        expand = query.get("expand", []) + query.get("expand[]", [])
        if expand:
            return self.json({key: value for key, value in info.items() if key in ("_id", "id", *expand)})
        siblings = []
        for file_name, file in repository.files(commit).items():
            sibling = {"rfilename": file_name}
            if query.get("blobs"):
                entry = repository.entry(file_name, file)
                sibling |= {"blobId": entry["oid"], "size": entry["size"]}
                if "lfs" in entry:
                    lfs = entry["lfs"]
                    sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
            siblings.append(sibling)
        return self.json({**info, "siblings": siblings})

    def tree(self, name, revision, inside, query):
        if self.begin("tree"):
            return True
        repository = self.find(name)
        if not repository or (repository.card.get("gated_list") and not self.gate(repository)):
            return True
        commit = self.at(repository, revision)
        if not commit:
            return True
        entries = repository.tree(commit, inside, query.get("recursive", [""])[0].lower() in ("true", "1"))
        if inside and not entries:
            return self.refuse(404, "EntryNotFound", f"{inside} does not exist on \"{revision}\"")
        entries, link = self.page(entries, query)
        done = [entry if isinstance(entry, dict) else repository.entry(*entry) for entry in entries]
        return self.json(done, link)

    def page(self, items, query):
        """One page of a list, and the header that leads to the next."""
        start = 0
        if cursor := query.get("cursor"):
            start = int(base64.urlsafe_b64decode(cursor[0]))
        size = min(ARGUMENTS.page, int(query.get("limit", [ARGUMENTS.page])[0]))
        headers = {}
        if start + size < len(items):
            later = {key: values for key, values in query.items() if key != "cursor"}
            later["cursor"] = [base64.urlsafe_b64encode(str(start + size).encode()).decode()]
            path = urllib.parse.urlsplit(self.path).path
            headers["Link"] = f"<{self.base()}{path}?{urllib.parse.urlencode(later, doseq=True)}>; rel=\"next\""
        if link := self.fault("link"):
            headers["Link"] = f"<{link['url']}>; rel=\"next\""
        return items[start : start + size], headers

    def paths_info(self, name, revision, body):
        if self.begin("paths-info"):
            return True
        repository = self.find(name)
        if not repository:
            return True
        commit = self.at(repository, revision)
        if not commit:
            return True
        wanted = json.loads(body)["paths"] if body.startswith("{") else urllib.parse.parse_qs(body).get("paths", [])
        wanted = [wanted] if isinstance(wanted, str) else wanted
        files = repository.files(commit)
        return self.json([repository.entry(path, files[path]) for path in wanted if path in files])

    def search(self, query):
        if self.begin("search"):
            return True
        found = []
        author, filters = query.get("author", [None])[0], query.get("filter", [])
        filters = [word for text in filters for word in text.split(",")]
        text = query.get("search", [""])[0].lower()
        for repository in repositories().values():
            if repository.card.get("private") and not self.may(repository):
                continue
            if author and repository.name.split("/")[0].lower() != author.lower():
                continue
            if all(word in repository.tags() for word in filters) and text in repository.name.lower():
                found.append(repository)
        found, link = self.page(found, query)
        keep = ("_id", "id", "modelId", "author", "private", "gated", "tags", "downloads", "likes", "createdAt")
        infos = [repository.info(repository.head) for repository in found]
        return self.json([{key: info[key] for key in keep} for info in infos], link)

    def locate(self, name, revision, path):
        """(repository, commit, file) that may be read, or None after the refusal was sent."""
        repository = self.find(name)
        if not repository or not self.gate(repository):
            return None
        commit = self.at(repository, revision)
        if not commit:
            return None
        file = repository.files(commit).get(path)
        if file is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": commit}
            self.answer(404, b"Entry not found", {"Content-Type": "text/plain", **headers})
            return None
        return repository, commit, file

    def resolve(self, name, revision, path):
        if self.begin("resolve"):
            return True
        found = self.locate(name, revision, path)
        if not found:
            return True
        repository, commit, file = found
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "Content-Type": "text/plain; charset=utf-8"}
        quoted = urllib.parse.quote(path)
        if not repository.large(path, file):
            etag = f'"{repository.entry(path, file)["oid"]}"'
            target = f"/api/resolve-cache/models/{repository.name}/{commit}/{quoted}?etag={urllib.parse.quote(etag)}"
            headers |= {"Location": target, "ETag": etag, "X-Linked-Etag": etag, "X-Linked-Size": file.size}
            return self.answer(307, f"Temporary Redirect. Redirecting to {target}".encode(), headers)
        sha256 = digest(file)[0]
        scheme, host = ("https" if ARGUMENTS.cert else "http"), self.headers.get("Host", "").rsplit(":", 1)[0]
        where = f"/{repository.name}/{commit}/{quoted}"
        signature = sha1(f"{SECRET}{urllib.parse.unquote(where)}".encode())
        target = f"{scheme}://{host}:{CDN_PORT}{where}?Expires={int(time.time()) + 3600}&Signature={signature}"
        headers |= {"Location": target, "X-Linked-Size": file.size, "X-Linked-Etag": f'"{sha256}"'}
        headers["ETag"] = f'"{sha256}"'
        if repository.card.get("xet"):
            headers["X-Xet-Hash"] = repository.entry(path, file)["xetHash"]
        return self.answer(302, f"Found. Redirecting to {target}".encode(), headers)

    def small(self, name, commit, path):
        if self.begin("small"):
            return True
        found = self.locate(name, commit, path)
        if not found:
            return True
        repository, commit, file = found
        etag = f'"{repository.entry(path, file)["oid"]}"'
        return self.file(file, {"ETag": etag, "X-Repo-Commit": commit, "Content-Type": "text/plain; charset=utf-8"})

    def cdn(self, parts, query):
        if self.begin("cdn"):
            return True
        xml = {"Content-Type": "application/xml"}
        if "Authorization" in self.headers:
            # As S3 does for an address that is signed already.
            message = b"<Error><Code>InvalidArgument</Code><Message>Only one auth mechanism allowed</Message></Error>"
            return self.answer(400, message, xml)
        signature = sha1(f"{SECRET}/{'/'.join(parts)}".encode())
        if query.get("Signature") != [signature] or int(query.get("Expires", ["0"])[0]) < time.time():
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>", xml)
        repository = repositories().get("/".join(parts[:2]))
        file = repository and repository.files(parts[2]).get("/".join(parts[3:]))
        if not file:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", xml)
        return self.file(file, {"ETag": f'"{digest(file)[0]}"'})


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, kind):
        self.kind = kind
        self.tls = None
        if ARGUMENTS.cert and kind != "control":
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(ARGUMENTS.cert, ARGUMENTS.key)
        super().__init__(address, Handler)

    def server_bind(self):
        # HTTPServer would look up its own name, which takes long where there is no name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def finish_request(self, request, client_address):
        if self.tls:
            request.settimeout(20)
            request = self.tls.wrap_socket(request, server_side=True)
            request.settimeout(None)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (OSError, ssl.SSLError)):
            super().handle_error(request, client_address)


def main():
    global ARGUMENTS, CDN_PORT, LOG_FILE
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cdn-port", type=int, default=0)
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--log")
    parser.add_argument("--page", type=int, default=1000)
    ARGUMENTS = parser.parse_args()
    if ARGUMENTS.log:
        LOG_FILE = open(ARGUMENTS.log, "a", encoding="utf-8")
    hub = Server((ARGUMENTS.bind, ARGUMENTS.port), "hub")
    cdn = Server((ARGUMENTS.bind, ARGUMENTS.cdn_port), "cdn")
    control = Server(("127.0.0.1", 0), "control")
    CDN_PORT = cdn.server_port
    for server in (cdn, control):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    scheme = "https" if ARGUMENTS.cert else "http"
    bases = [f"{scheme}://{ARGUMENTS.bind}:{server.server_port}" for server in (hub, cdn)]
    print("listening", *bases, f"http://127.0.0.1:{control.server_port}", flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()
