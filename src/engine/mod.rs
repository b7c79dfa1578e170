//! What a serving program is: its versions and flags as data, argument vectors, readiness, causes of death.
//!
//! In: settings that sizing and placement decided. Out: the program's arguments and environment, how to tell
//! that it is ready, what memory it took by its own account, and why it died. May import: base. Pure: nothing here starts or asks a process.
//!
//! Every size that an engine could choose by itself is passed explicitly, so that what was planned is what
//! happens. Keys never travel in arguments: other users of a node can read those.

mod argv;
mod classify;
mod internal;
mod llama_cpp;
mod memory;
mod progress;
mod readiness;
mod sglang;
mod support;
mod surroundings;
mod versions;
mod vllm;

pub use argv::{
    Planned, Projector, Settings, argv, device_environment, key_environment, owned_arguments, settings_environment,
};
pub use classify::{Cause, Ending, classify};
pub use internal::{internal_ports, names_internal_port, pass_internal_ports};
pub use llama_cpp::{CONTEXT_CHECKPOINTS, LLAMA_UBATCH, tell_workers, worker_argv, worker_endpoint};
pub use memory::{DeviceMemory, EngineMemory, read_memory};
pub use progress::{Progress, progress_of, progress_path};
pub use readiness::{Readiness, readiness, ready_timeout};
pub use support::{Capability, has_model, least_capability, on_amd};
pub use surroundings::{
    Contained, Runtime, also_mounted, image_version, in_container, names, owned_environment, program_in_image,
    with_modules,
};
pub use versions::{
    CacheLayout, Layout, cache_layout, llama_layout, parse_version, program_names, version_arguments, worker_names,
};
pub use vllm::{VLLM_BATCHED_TOKENS, one_share_is_enough, takes_stage_layers, usable_bytes, utilisation};
