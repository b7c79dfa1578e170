//! Where a program runs when it does not run straight on the node: with environment modules, in a container.
//!
//! Everything here only arranges words; no word of a config is ever pasted into a script. Sources: docker's and
//! podman's `run`, apptainer's `exec` (their reference pages), Environment Modules' and Lmod's `module load`.

use std::collections::BTreeMap;

use super::versions::parse_tag;
use crate::base::EngineKind;

/// Loads modules by its arguments, then becomes the program that follows them. A login shell, because that is where
/// sites define `module`. The words it prints on failure are known to `classify`.
const MODULES: &str = "n=$1; shift; if ! command -v module >/dev/null 2>&1; then \
    echo \"flock: environment module $1 cannot be loaded: the login shell knows no module command\" >&2; exit 78; fi; \
    while [ \"$n\" -gt 0 ]; do if ! module load \"$1\"; then \
    echo \"flock: environment module $1 cannot be loaded\" >&2; exit 78; fi; shift; n=$((n-1)); done; exec \"$@\"";

/// A program with its arguments, started after these environment modules were loaded, in order.
pub fn with_modules(modules: &[String], argv: Vec<String>) -> Vec<String> {
    if modules.is_empty() {
        return argv;
    }
    let begin = ["/bin/bash", "-lc", MODULES, "flock-modules"].map(str::to_owned);
    let count = modules.len().to_string();
    begin.into_iter().chain([count]).chain(modules.iter().cloned()).chain(argv).collect()
}

/// What runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// Runs them as its own children, as the user.
    Apptainer,
    /// Asks a daemon.
    Docker,
    /// docker's words, other words for devices.
    Podman,
}

impl Runtime {
    /// Names of its programs, in the order in which nodes are searched: those that need no daemon first.
    pub const PROGRAMS: &[(&str, Self)] = &[
        ("apptainer", Self::Apptainer),
        ("singularity", Self::Apptainer),
        ("docker", Self::Docker),
        ("podman", Self::Podman),
    ];

    /// From the path of its program.
    pub fn of(program: &str) -> Option<Self> {
        let name = program.rsplit('/').next().unwrap_or(program);
        Self::PROGRAMS.iter().find(|(known, _)| *known == name).map(|(_, runtime)| *runtime)
    }

    /// Whether its containers live on when the process that started them is gone.
    pub fn outlives_client(self) -> bool {
        self != Self::Apptainer
    }
}

/// A program in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contained<'a> {
    /// Absolute path of the runtime's program on the node.
    pub runtime: &'a str,
    /// The image.
    pub image: &'a str,
    /// The container's name, where the runtime knows names.
    pub name: &'a str,
    /// The folder of the weights, seen at the same path and read-only.
    pub weights: &'a str,
    /// Its accelerators as their maker's tools know them: UUIDs, or indices.
    pub accelerators: &'a [String],
    /// Their maker.
    pub vendor: &'a str,
    /// Names of all variables that go in. Their values come from the process that starts it: other users can read
    /// arguments.
    pub env: Vec<&'a str>,
}

/// The argument vector that runs `argv` in a container, program inside first. It shares the node's network, so that
/// the engine listens on the node's loopback. Of NVIDIA's devices docker and podman show it only its own; AMD's card
/// nodes have no name that follows from what is planned, so there all of them are mapped, and `ROCR_VISIBLE_DEVICES` and
/// its like choose among them. apptainer shows all devices of either maker, chosen among in the same way.
pub fn in_container(kind: Runtime, container: &Contained<'_>, argv: &[String]) -> Vec<String> {
    let (program, arguments) = match argv.split_first() {
        Some((program, arguments)) => (program.as_str(), arguments),
        None => ("", argv),
    };
    let nvidia = container.vendor == "nvidia";
    let some = !container.accelerators.is_empty();
    let folder = mounted(container.weights);
    let mut words = vec![container.runtime.to_owned()];
    let mut push = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
    match kind {
        Runtime::Apptainer => {
            push(&["exec"]);
            if some {
                push(&[if nvidia { "--nv" } else { "--rocm" }]);
            }
            push(&["--bind", &bound(folder), "--pwd", "/"]);
            let image = container.image;
            let plain = !image.contains("://") && !image.starts_with('/') && !image.ends_with(".sif");
            push(&[&if plain { format!("docker://{image}") } else { image.to_owned() }, program]);
        }
        Runtime::Docker | Runtime::Podman => {
            // The agent keeps the log; the daemon's own would grow without bound.
            push(&[
                "run",
                "--rm",
                "--name",
                container.name,
                "--network",
                "host",
                "--ipc",
                "host",
                "--log-driver",
                "none",
            ]);
            if some && !nvidia {
                push(&["--device", "/dev/kfd", "--device", "/dev/dri", "--security-opt", "seccomp=unconfined"]);
            } else if kind == Runtime::Docker && some {
                // Read as a line of CSV: several ids are one field.
                push(&["--gpus", &format!("\"device={}\"", container.accelerators.join(","))]);
            } else {
                for uuid in container.accelerators {
                    push(&["--device", &format!("nvidia.com/gpu={uuid}")]);
                }
            }
            push(&["--mount", &mount(folder)]);
            for name in &container.env {
                push(&["--env", name]);
            }
            push(&["--entrypoint", program, container.image]);
        }
    }
    words.extend(arguments.iter().cloned());
    words
}

/// The same vector with more folders seen inside, at the same path and read-only: those that links in the weights'
/// folder lead to. What runs in no container sees them anyway.
pub fn also_mounted(argv: &[String], weights: &str, more: &[String]) -> Vec<String> {
    let folder = mounted(weights);
    let (mount_of, bound_of) = (mount(folder), bound(folder));
    let ours =
        |pair: &[String]| (pair[0] == "--mount" && pair[1] == mount_of) || (pair[0] == "--bind" && pair[1] == bound_of);
    let mut words = argv.to_vec();
    if let Some(at) = argv.windows(2).position(ours) {
        let inside = |path: &&String| std::path::Path::new(path).starts_with(folder);
        let also = more.iter().filter(|path| !inside(path)).flat_map(|path| {
            let value = if argv[at] == "--mount" { mount(path) } else { bound(path) };
            [argv[at].clone(), value]
        });
        words.splice(at + 2..at + 2, also);
    }
    words
}

fn mount(folder: &str) -> String {
    format!("type=bind,{},{},readonly", field("source", folder), field("target", folder))
}

fn bound(folder: &str) -> String {
    format!("{folder}:{folder}:ro")
}

/// What has to be mounted for a folder: links of a hub cache's snapshot lead to the folder's siblings.
fn mounted(folder: &str) -> &str {
    folder.find("/snapshots/").map_or(folder, |at| &folder[..at])
}

/// A field of docker's `--mount`, which is a line of CSV.
fn field(name: &str, value: &str) -> String {
    let plain = format!("{name}={value}");
    if plain.contains([',', '"']) { format!("\"{}\"", plain.replace('"', "\"\"")) } else { plain }
}

/// The program of an engine inside its images, where the config names none.
pub fn program_in_image(kind: EngineKind) -> &'static str {
    match kind {
        // ghcr.io/ggml-org/llama.cpp keeps it outside PATH.
        EngineKind::LlamaCpp => "/app/llama-server",
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
    }
}

/// The engine's version that an image's tag names (`vllm/vllm-openai:v0.11.0`, `…/llama.cpp:server-cuda-b6123`).
pub fn image_version(kind: EngineKind, image: &str) -> Option<String> {
    let image = image.split('@').next().unwrap_or(image);
    let (_, tag) = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?;
    parse_tag(kind, tag)
}

/// Variables that only flock may set: which devices an engine sees, its key, and the agent's own marks.
pub fn owned_environment() -> &'static [&'static str] {
    &[
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "FLOCK_INSTANCE",
        "FLOCK_INSTANCE_STATE",
        "GPU_DEVICE_ORDINAL",
        "HF_HUB_OFFLINE",
        "HIP_VISIBLE_DEVICES",
        "LLAMA_API_KEY",
        "MTMD_BACKEND_DEVICE",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "VLLM_API_KEY",
        "VLLM_PORT",
        "VLLM_PP_LAYER_PARTITION",
    ]
}

/// All names of an environment and further ones, without repetition.
pub fn names<'a>(env: &'a BTreeMap<String, String>, more: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = env.keys().map(String::as_str).chain(more).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn modules_are_arguments_and_never_script() {
        let argv = words(&["/opt/x/vllm", "serve", "$(touch /x)"]);
        let wrapped = with_modules(&words(&["cuda/12", "a; rm -rf /"]), argv.clone());
        assert_eq!(wrapped[..3], words(&["/bin/bash", "-lc", MODULES]));
        assert_eq!(wrapped[3..7], words(&["flock-modules", "2", "cuda/12", "a; rm -rf /"]));
        assert_eq!(wrapped[7..], argv);
        assert!(!MODULES.contains("{port}"));
        assert_eq!(with_modules(&[], argv.clone()), argv);
    }

    #[test]
    fn a_container_gets_its_devices_its_weights_and_no_secret_in_words() {
        let uuids = words(&["GPU-11111111-2222-3333-4444-555555555555", "GPU-21111111-2222-3333-4444-555555555555"]);
        let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
        let container = |runtime| Contained {
            runtime,
            image: "vllm/vllm-openai:v0.11.0",
            name: "flock-0123456789ab",
            weights: "/data/hub/models--a/snapshots/123",
            accelerators: &uuids,
            vendor: "nvidia",
            env: names(&env, ["VLLM_API_KEY"]),
        };
        let argv = words(&["vllm", "serve", "/data/hub/models--a/snapshots/123", "--port", "{port}"]);
        let docker = in_container(Runtime::Docker, &container("/usr/bin/docker"), &argv).join(" ");
        assert_eq!(
            docker,
            "/usr/bin/docker run --rm --name flock-0123456789ab --network host --ipc host --log-driver none --gpus \
             \"device=GPU-11111111-2222-3333-4444-555555555555,GPU-21111111-2222-3333-4444-555555555555\" --mount \
             type=bind,source=/data/hub/models--a,target=/data/hub/models--a,readonly --env TOKEN --env VLLM_API_KEY \
             --entrypoint vllm vllm/vllm-openai:v0.11.0 serve /data/hub/models--a/snapshots/123 --port {port}"
        );
        let apptainer = in_container(Runtime::Apptainer, &container("/usr/bin/apptainer"), &argv).join(" ");
        assert_eq!(
            apptainer,
            "/usr/bin/apptainer exec --nv --bind /data/hub/models--a:/data/hub/models--a:ro --pwd / \
             docker://vllm/vllm-openai:v0.11.0 vllm serve /data/hub/models--a/snapshots/123 --port {port}"
        );
        let podman = in_container(Runtime::Podman, &container("/usr/bin/podman"), &argv).join(" ");
        assert!(podman.contains("--device nvidia.com/gpu=GPU-1") && !podman.contains("--gpus"), "{podman}");
        let card = words(&["GPU-1111222233334444"]);
        let amd = Contained { accelerators: &card, vendor: "amd", ..container("/usr/bin/docker") };
        let amd = in_container(Runtime::Docker, &amd, &argv).join(" ");
        assert!(amd.contains("--device /dev/kfd --device /dev/dri") && !amd.contains("--gpus"), "{amd}");
        assert!(![docker, apptainer, podman].concat().contains("hunter2"));
    }

    #[test]
    fn what_links_lead_to_is_seen_inside_too() {
        let argv = |runtime: &str, kind| {
            let container = Contained {
                runtime,
                image: "i",
                name: "n",
                weights: "/w/0123",
                accelerators: &[],
                vendor: "",
                env: Vec::new(),
            };
            in_container(kind, &container, &words(&["serve", "--mount", "x"]))
        };
        let more = words(&["/w/0123/sub", "/hf/a,b/blobs"]);
        let docker = also_mounted(&argv("/docker", Runtime::Docker), "/w/0123", &more).join(" ");
        let both = "--mount type=bind,source=/w/0123,target=/w/0123,readonly --mount \
                    type=bind,\"source=/hf/a,b/blobs\",\"target=/hf/a,b/blobs\",readonly --entrypoint serve i --mount x";
        assert!(docker.ends_with(both), "{docker}");
        let apptainer = also_mounted(&argv("/apptainer", Runtime::Apptainer), "/w/0123", &more[1..]).join(" ");
        assert!(apptainer.contains("--bind /w/0123:/w/0123:ro --bind /hf/a,b/blobs:/hf/a,b/blobs:ro --pwd"));
        let plain = words(&["/bin/x", "--mount", "y"]);
        assert_eq!(also_mounted(&plain, "/w/0123", &more), plain);
    }

    #[test]
    fn odd_folders_stay_one_field() {
        assert_eq!(field("source", "/a,b\"c"), "\"source=/a,b\"\"c\"");
        assert_eq!(mounted("/w/0123"), "/w/0123");
    }

    #[test]
    fn tags_tell_versions() {
        assert_eq!(image_version(EngineKind::Vllm, "vllm/vllm-openai:v0.11.0").as_deref(), Some("0.11.0"));
        assert_eq!(
            image_version(EngineKind::LlamaCpp, "ghcr.io/x/llama.cpp:server-cuda-b6123").as_deref(),
            Some("6123")
        );
        assert_eq!(image_version(EngineKind::Vllm, "registry:5000/vllm"), None);
        assert_eq!(image_version(EngineKind::Vllm, "vllm/vllm-openai:latest"), None);
        assert_eq!(
            image_version(EngineKind::Sglang, "lmsysorg/sglang:v0.5.3-cu126@sha256:00").as_deref(),
            Some("0.5.3")
        );
    }

    #[test]
    fn what_flock_sets_is_owned() {
        for kind in EngineKind::ALL {
            let devices = ["GPU-1".to_owned()];
            let set = |vendor| crate::engine::device_environment(*kind, vendor, &devices).into_keys();
            let key = crate::engine::key_environment(*kind).map(str::to_owned);
            for name in set("nvidia").chain(set("amd")).chain(key) {
                assert!(owned_environment().contains(&name.as_str()), "{name}");
            }
        }
    }
}
