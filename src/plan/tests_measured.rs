//! What engines took, in plans.

use super::ids;
use super::testing::{Wish, World};
use crate::base::GIB;
use crate::inventory::{Calibration, MeasuredMemory, MeasuredParts};

#[test]
fn what_an_engine_took_is_a_warning_and_no_step() {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 2)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    let spec = world.observed["ada-1"][0].clone();
    let sized_for = *spec.sized_for.clone().expect("the node is told what it was sized for");
    let planned = sized_for.per_accelerator[0].total();
    assert_eq!((planned, sized_for.context), (18 * GIB, 16_384));
    let parts = |used| MeasuredParts { used_bytes: Some(used), ..MeasuredParts::default() };
    let mut took = Calibration {
        model: "coder".into(),
        variant: spec.variant.clone(),
        engine: spec.engine,
        sized_for,
        measured: MeasuredMemory { per_accelerator: vec![parts(17 * GIB)], ..MeasuredMemory::default() },
        at: String::new(),
    };
    let with = |world: &mut World, took: &Calibration| {
        let node = world.node("ada-1");
        node.calibrations = vec![took.clone()];
        node.instances[0].measured = Some(Box::new(took.clone()));
    };
    with(&mut world, &took);
    // The figures follow, and flags made of them; nothing that runs does.
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 19)]);
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.warnings.is_empty(), "{:?} {:?}", plan.steps, plan.warnings);
    let memory = &plan.instances[0].memory.per_accelerator[0];
    assert_eq!((memory.total_bytes, memory.measured_bytes), (19 * GIB, Some(17 * GIB)));
    assert_ne!(plan.instances[0].argv, spec.argv);

    took.measured.per_accelerator[0] = parts(20 * GIB);
    with(&mut world, &took);
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.drift.is_empty());
    let [warning] = plan.warnings.as_slice() else { panic!("{:?}", plan.warnings) };
    assert_eq!(warning.id, ids::UNDER_ESTIMATE);
    assert!(warning.message.contains("took 20.0 GiB") && warning.message.contains("(+11 %)"), "{warning:?}");

    // An engine that left layers on the CPU has not failed, and is not what was planned.
    took.measured.offloaded_layers = Some([30, 49]);
    with(&mut world, &took);
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.warnings.is_empty());
    let [drift] = plan.drift.as_slice() else { panic!("{:?}", plan.drift) };
    assert!(drift.kind == "instance_changed" && drift.text.contains("30 of its 49 layers"), "{drift:?}");
}
