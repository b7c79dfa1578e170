//! What a real engine took, by its log, by the driver and by the kernel.

use flock::engine::{EngineMemory, read_memory};
use flock::inventory::{Calibration, PlannedParts, SizedFor};

use super::*;

/// A specification of the real llama-server, as flock starts it but for the context.
fn server(instance: &str, context: u64, accelerators: &[&str]) -> InstanceSpec {
    let named = |variable: &str| {
        std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, or see scripts/engine"))
    };
    let (program, model) = (named("FLOCK_TEST_LLAMA_SERVER"), named("FLOCK_TEST_MODEL"));
    let context_words = context.to_string();
    let arguments = ["--model", &model, "--port", "{port}", "-c", &context_words, "--alias", "coder", "-lv", "4"];
    let planned = PlannedParts { weights_bytes: 90 << 20, kv_bytes: 10 << 20, overhead_bytes: 100 << 20 };
    let port = super::ports::free_port();
    InstanceSpec {
        argv: std::iter::once(program.as_str()).chain(arguments).map(str::to_owned).collect(),
        accelerators: accelerators.iter().map(|uuid| (*uuid).to_owned()).collect(),
        key_env: Some("LLAMA_API_KEY".into()),
        port,
        sized_for: Some(Box::new(SizedFor {
            revision: "sha256:abc".into(),
            accelerator: accelerators.first().map(|_| "NVIDIA GeForce RTX 4090 24564 MiB".to_owned()),
            context,
            concurrency: 1,
            per_accelerator: vec![planned; accelerators.len()],
            host: planned,
            ..SizedFor::default()
        })),
        ..script(instance, "")
    }
}

fn told(home: &Home, instance: &str) -> EngineMemory {
    let log = std::fs::read_to_string(home.state().join("instances").join(instance).join("log")).expect("a log");
    read_memory(EngineKind::LlamaCpp, &log)
}

fn measured(home: &Home, instance: &str) -> Calibration {
    let found = home.until("measured", |facts| facts.instance == instance && facts.measured.is_some());
    *found.measured.expect("just seen")
}

#[test]
fn the_buffers_of_a_real_engine_are_measured_once_and_kept() {
    let home = Home::new();
    home.start(&server("aaaa", 512, &[]));
    let first = measured(&home, "aaaa");
    let told = told(&home, "aaaa");
    let (host, log) = (first.measured.host, told.host.expect("the log names the CPU's buffers"));
    assert_eq!((host.weights_bytes, host.kv_bytes), (log.weights_bytes, log.kv_bytes));
    assert_eq!((host.other_bytes, told.mapped_bytes), (log.other_bytes, log.weights_bytes));
    assert!(log.kv_bytes.is_some_and(|bytes| bytes == 30 * 2 * 3 * 64 * 2 * 512), "{log:?}");
    let used = host.used_bytes.expect("the kernel tells");
    assert!(used >= log.total().expect("known") && used % (16 << 20) == 0, "{used}");
    assert!(first.measured.per_accelerator.is_empty() && first.spilled().is_none(), "{first:?}");
    assert_eq!(home.probe().calibrations, std::slice::from_ref(&first));

    // Another keeper takes the engine over and knows it still; a new start of the same does not say less.
    kill(home.keeper_pid());
    home.ask(Request::Supervise { generation: 1 });
    assert_eq!(measured(&home, "aaaa").measured.host.kv_bytes, host.kv_bytes);
    let pid = home.until("running", |facts| facts.running).pid.expect("a pid");
    kill(pid);
    home.until("ready again", |facts| facts.state == InstanceState::Ready && facts.pid != Some(pid));
    assert!(measured(&home, "aaaa").measured.host.used_bytes >= host.used_bytes);

    // The same with another context is another entry, and both outlive their instances.
    assert_eq!(home.stop("aaaa", 5000), Response::Done);
    home.start(&server("bbbb", 1024, &[]));
    measured(&home, "bbbb");
    assert_eq!(home.stop("bbbb", 5000), Response::Done);
    let node = home.probe();
    let contexts: Vec<u64> = node.calibrations.iter().map(|known| known.sized_for.context).collect();
    assert_eq!((contexts, node.instances.len()), (vec![512, 1024], 0));
    assert_eq!(node.calibrations[1].measured.host.kv_bytes, log.kv_bytes.map(|bytes| 2 * bytes));
}

#[test]
fn the_driver_counts_and_layers_on_the_cpu_are_told() {
    let mut home = Home::new();
    with_driver(&mut home, "NVIDIA GeForce RTX 4090|GPU-a|24564|0|00000000:01:00.0|8.9\n");
    let mut spec = server("aaaa", 512, &["GPU-a"]);
    spec.env.insert("CUDA_VISIBLE_DEVICES".into(), "GPU-a".into());
    spec.env.insert("FLOCK_FAKE_HOLD_MIB".into(), "900".into());
    home.start(&spec);
    let found = measured(&home, "aaaa");
    let device = found.measured.per_accelerator[0];
    assert_eq!((device.used_bytes, device.weights_bytes), (Some(900 << 20), None));
    assert_eq!(found.totals(), Some((200 << 20, 900 << 20)));
    // This llama-server is not built for the device: it says 31 of 31, and names no buffer there.
    assert_eq!(told(&home, "aaaa").offloaded_layers, Some((31, 31)));
    assert_eq!(found.spilled(), Some((0, 31)));
}

#[test]
fn what_was_not_sized_is_not_measured() {
    let home = Home::new();
    home.start(&InstanceSpec { sized_for: None, ..server("aaaa", 512, &[]) });
    home.until("ready", |facts| facts.state == InstanceState::Ready);
    sleep(Duration::from_millis(2500));
    let node = home.probe();
    assert!(node.calibrations.is_empty() && node.instances[0].measured.is_none());
}
