//! Ports that engines open for themselves, beside the one they serve on.
//!
//! Two instances on a node must not meet there either (the second vLLM with the first one's port is the classic), so
//! the plan allocates them and says so to the engine. What goes over Unix sockets (the ZMQ channels between the API
//! server, scheduler and workers of one node, in both engines) needs none; sockets that gloo and NCCL open while
//! they connect ranks are bound by the kernel in the ephemeral range, which no engine lets anyone choose.

use std::collections::BTreeMap;

use super::argv::push;
use crate::base::EngineKind;

/// vLLM counts upwards from `VLLM_PORT` for every port that it wants and that is taken: the rendezvous of
/// `torch.distributed` needs one, the others are room to walk. Sources: vLLM `vllm/utils/network_utils.py`
/// (`get_open_port`), `vllm/v1/executor/multiproc_executor.py`, `uniproc_executor.py`; "Environment Variables" of its
/// documentation (`VLLM_PORT` is the port for internal usage, not the API server's).
const VLLM_PORTS: u16 = 4;
/// SGLang takes the rendezvous port as `--nccl-port`, else any free one. Source: `sglang/srt/server_args.py`
/// (`PortArgs.init_new`).
const SGLANG_PORTS: u16 = 1;

/// How many ports in a row an engine needs besides its own; llama.cpp none.
pub fn internal_ports(kind: EngineKind) -> u16 {
    match kind {
        EngineKind::LlamaCpp => 0,
        EngineKind::Vllm => VLLM_PORTS,
        EngineKind::Sglang => SGLANG_PORTS,
    }
}

/// Tells an engine its internal ports; without any, it chooses for itself.
pub fn pass_internal_ports(
    kind: EngineKind,
    ports: &[u16],
    argv: &mut Vec<String>,
    env: &mut BTreeMap<String, String>,
) {
    let Some(first) = ports.first() else { return };
    match kind {
        EngineKind::LlamaCpp => {}
        EngineKind::Vllm => {
            env.insert(VLLM_PORT.to_owned(), first.to_string());
        }
        EngineKind::Sglang => push(argv, NCCL_PORT, first),
    }
}

/// The variable and the flag above: like the port they are no part of a specification.
const VLLM_PORT: &str = "VLLM_PORT";
pub(super) const NCCL_PORT: &str = "--nccl-port";

/// Whether an argument or a variable only carries an internal port.
pub fn names_internal_port(word: &str) -> bool {
    word == VLLM_PORT || word == NCCL_PORT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_told_what_it_was_given() {
        for kind in EngineKind::ALL {
            let (mut argv, mut env) = (vec!["x".to_owned()], BTreeMap::new());
            let ports: Vec<u16> = (20001..20001 + internal_ports(*kind)).collect();
            pass_internal_ports(*kind, &ports, &mut argv, &mut env);
            let told = argv.join(" ").contains("20001") || env.values().any(|value| value == "20001");
            assert_eq!(told, !ports.is_empty(), "{kind}");
            let names = argv.iter().skip(1).step_by(2).chain(env.keys());
            assert!(names.into_iter().all(|name| names_internal_port(name)), "{kind}");
        }
    }
}
