//! Explanations with known answers: what was lost by, what would change the answer, what is in the way together, and
//! who loses a place to whom. Whatever is said to help is done, and helps.

use super::inputs::{CARD, Card, dense, desired, inventory, llama_8b, weights};
use super::random;
use crate::base::GIB;
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::exact::tiers::Watch;
use crate::placement::explain::account::{costs, counted};
use crate::placement::solve::solve_with_layout;
use crate::placement::*;
use crate::weights::Variant;

const A100: Card = ("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None);

/// A lab: 4 A100 80GB in one node, 8 RTX 4090 in two.
fn lab() -> Inventory {
    inventory(&[("a100", &[A100; 4]), ("ada-1", &[CARD; 4]), ("ada-2", &[CARD; 4])])
}

const NODES: &str = "node \"a100\" address=\"10.0.0.1\" { label \"tier\" \"datacenter\" }\n\
    node \"ada-1\" address=\"10.0.0.2\" { label \"tier\" \"consumer\" }\n\
    node \"ada-2\" address=\"10.0.0.3\" { label \"tier\" \"consumer\" }\n\
    priority \"high\" rank=100 preempts=#true\npriority \"mid\" rank=50\npriority \"low\" rank=10\n";

fn config(models: &str) -> Desired {
    desired(&format!("{NODES}{models}"))
}

/// The same weights with fewer bits.
fn quantised(of: &Variant, id: &str, quality: &str, bytes: u64) -> Variant {
    let mut small = dense(of.architecture.layers, of.architecture.hidden, 8, 28_672, of.architecture.vocab, bytes);
    small.architecture = of.architecture.clone();
    (small.id, small.quality) = (id.to_owned(), quality.parse().unwrap());
    small
}

/// 141 GB of 16-bit weights.
fn llama_70b() -> Variant {
    dense(80, 8192, 8, 28_672, 128_256, 141_107_412_992)
}

fn candidates(models: &[(&str, Vec<Variant>)]) -> Candidates {
    models.iter().flat_map(|(name, variants)| weights(name, variants.clone())).collect()
}

struct Lab {
    desired: Desired,
    inventory: Inventory,
    candidates: Candidates,
    placement: Placement,
    solution: Solution,
}

impl Lab {
    fn new(models: &str, inventory: Inventory, candidates: Candidates) -> Self {
        let desired = config(models);
        let (placement, solution) = place_and_keep(&desired, &inventory, &candidates, &Options::default());
        assert_eq!(check(&solution.problem, &placement), Vec::<String>::new());
        Self { desired, inventory, candidates, placement, solution }
    }

    fn why(&self, model: &str) -> Why {
        let options = Options::default();
        let why = explain(&self.desired, &self.inventory, &self.candidates, &options, &self.solution, model);
        let again = explain(&self.desired, &self.inventory, &self.candidates, &options, &self.solution, model);
        assert_eq!(why, again, "the same question has the same answer");
        why.unwrap()
    }

    /// Replicas that are missing, and the worst quality.
    fn fare(placement: &Placement, solution: &Solution, name: &str, wanted: u32) -> (u32, u32) {
        let placed: Vec<&Placed> = placement.instances.iter().filter(|placed| placed.model == name).collect();
        let demand = &solution.problem.models[solution.problem.model(name).unwrap()];
        let best = demand.candidates.iter().map(|candidate| candidate.quality).min().unwrap_or(0);
        let losses = placed.iter().map(|placed| demand.candidates[placed.candidate].quality - best);
        (wanted - placed.len() as u32, losses.sum())
    }

    /// Does every change that is said to help, by the way that plans take, and sees it help.
    fn helped(&self, model: &str) -> Vec<String> {
        let wanted = self.desired.models[model].replicas.max;
        let before = Self::fare(&self.placement, &self.solution, model, wanted);
        let turns = self.why(model).turns;
        for turn in &turns {
            let (mut desired, mut inventory) = (self.desired.clone(), self.inventory.clone());
            turn.change_made.apply(&mut desired, &mut inventory);
            let (placement, solution) = place_and_keep(&desired, &inventory, &self.candidates, &Options::default());
            assert_eq!(check(&solution.problem, &placement), Vec::<String>::new(), "{turn:?}");
            let after = Self::fare(&placement, &solution, model, wanted);
            assert!(after < before, "{}: {before:?} -> {after:?}", turn.change);
        }
        turns.into_iter().map(|turn| format!("{}: {}", turn.change, turn.effect)).collect()
    }
}

#[test]
fn what_would_turn_the_answer_does() {
    let big = llama_70b();
    let fp8 = quantised(&big, "fp8", "fp8", 71 * GIB);
    let awq = quantised(&big, "awq-int4", "awq-int4", 38 * GIB);
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192; replicas max=2; \
        place { require label=\"tier\" is=\"datacenter\" } }\n\
        model \"chat\" { source \"path:/chat\"; engine \"vllm\"; context 8192; priority \"high\"; replicas max=2; \
        place { require label=\"tier\" is=\"datacenter\" } }\n";
    let facts = lab();
    let chat = quantised(&big, "bf16", "bf16", 60 * GIB);
    let lab = Lab::new(models, facts, candidates(&[("big", vec![big, fp8, awq]), ("chat", vec![chat])]));
    let helped = lab.helped("big");
    assert!(helped.iter().any(|turn| turn.starts_with("if `chat` had one replica less")), "{helped:#?}");
    assert!(helped.iter().any(|turn| turn.contains("more accelerator")), "{helped:#?}");
    assert!(helped.iter().any(|turn| turn.contains(" GiB more on ")), "{helped:#?}");
    assert!(
        helped.iter().all(|turn| turn.contains("it would take") || turn.contains("would be placed")),
        "{helped:#?}"
    );

    let why = lab.why("chat");
    assert!(why.content && why.turns.is_empty() && why.together.is_empty(), "{why:#?}");
    let worse = why.lost.iter().find(|group| group.by == LostBy::Worse).unwrap();
    let split = worse.members.iter().find(|lost| lost.ranks == Some(2)).unwrap();
    let tier = split.tier.as_ref().unwrap();
    assert!(tier.solved && tier.without != tier.with, "{tier:?}");
}

#[test]
fn memory_that_is_said_to_be_enough_is_and_a_tenth_less_is_not() {
    let config = "model \"m\" { source \"path:/m\"; engine \"llama.cpp\"; context 8192; \
        place { require label=\"node\" is=\"ada-1\" } }\n";
    let mut gguf = dense(40, 5120, 8, 13_824, 32_000, 26 * GIB);
    (gguf.id, gguf.format, gguf.start_file) =
        ("gguf:F16".to_owned(), crate::base::WeightFormat::Gguf, Some("m.gguf".to_owned()));
    let facts = inventory(&[("a100", &[]), ("ada-1", &[CARD]), ("ada-2", &[])]);
    let lab = Lab::new(config, facts, candidates(&[("m", vec![gguf])]));
    lab.helped("m");
    let turns = lab.why("m").turns;
    let memory = turns.iter().find(|turn| turn.kind == "memory").unwrap();
    assert!(memory.change.ends_with(" more on one accelerator of ada-1"), "{memory:?}");
    let Change::Memory { node, accelerators, bytes } = memory.change_made.clone() else { panic!("{memory:?}") };
    let places = |bytes: u64| {
        let (mut desired, mut inventory) = (lab.desired.clone(), lab.inventory.clone());
        let change = Change::Memory { node: node.clone(), accelerators: accelerators.clone(), bytes };
        change.apply(&mut desired, &mut inventory);
        place(&desired, &inventory, &lab.candidates, &Options::default()).0.unplaced.is_empty()
    };
    assert_eq!((places(bytes), places(bytes - GIB / 10)), (true, false), "{memory:?}");
    // In the order of the size: settings, memory, what others give, hardware.
    let order = |kind: &str| ["setting", "memory", "replicas", "accelerators", "node"].iter().position(|k| *k == kind);
    let kinds: Vec<_> = turns.iter().map(|turn| order(&turn.kind).unwrap()).collect();
    assert!(kinds.is_sorted(), "{turns:#?}");
}

/// What keeps a model out, as words.
fn together(lab: &Lab, model: &str) -> Vec<(String, bool)> {
    let unplaced = lab.placement.unplaced.iter().find(|unplaced| unplaced.model == model).unwrap();
    let why = lab.why(model);
    if unplaced.required {
        assert_eq!(unplaced.together, why.together, "a plan says the same");
    }
    why.together.into_iter().map(|o| (o.constraint, o.alone)).collect()
}

#[test]
fn a_refusal_is_an_irreducible_set() {
    // Too large for the consumer cards, kept off the others by its selector: any one of the three would do.
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192; \
        place { require label=\"tier\" is=\"consumer\" } }\n";
    let lab1 = Lab::new(models, lab(), candidates(&[("big", vec![llama_70b()])]));
    let found = together(&lab1, "big");
    let alone = |word: &str| (word.to_owned(), true);
    assert_eq!(found, [alone("selector"), alone("memory"), alone("memory")]);

    // A higher rank fills the only node: its place, the memory, and the selector that keeps it there.
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192; \
        place { require label=\"tier\" is=\"datacenter\" } }\n\
        model \"first\" { source \"path:/first\"; engine \"vllm\"; context 8192; priority \"high\"; replicas min=2; \
        place { require label=\"tier\" is=\"datacenter\" } }\n";
    let both = candidates(&[("big", vec![llama_70b()]), ("first", vec![llama_70b()])]);
    let lab2 = Lab::new(models, inventory(&[("a100", &[A100; 4]), ("ada-1", &[]), ("ada-2", &[])]), both);
    let found = together(&lab2, "big");
    assert_eq!(found, [alone("model"), alone("memory")]);

    // Two things stand in the way, one behind the other: no change alone is enough, and that is said.
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192; quality min=\"bf16\"; \
        place { require label=\"tier\" is=\"laptop\" } }\n";
    let small = quantised(&llama_70b(), "awq-int4", "awq-int4", 38 * GIB);
    let only = inventory(&[("a100", &[]), ("ada-1", &[CARD; 4]), ("ada-2", &[])]);
    let lab3 = Lab::new(models, only, candidates(&[("big", vec![small])]));
    let found = together(&lab3, "big");
    assert_eq!(found, [("quality".to_owned(), false)]);
}

#[test]
fn nothing_is_invented_where_no_change_helps() {
    let models = "model \"m\" { source \"path:/m\"; engine \"vllm\"; context 8192 }\n";
    let mut facts = lab();
    facts.nodes.iter_mut().for_each(|node| node.reachable = false);
    let lab = Lab::new(models, facts, candidates(&[("m", vec![llama_8b()])]));
    let why = lab.why("m");
    assert!(why.turns.is_empty() && why.together.is_empty() && !why.content, "{why:#?}");
}

/// An instance that runs.
fn runs(facts: &mut Inventory, model: &str, replica: u32, node: usize, cards: &[u32], sessions: u32) {
    let name = facts.nodes[node].name.clone();
    let accelerators: Vec<String> = cards.iter().map(|card| format!("{name}#{card}")).collect();
    let instance = serde_json::json!({ "instance": format!("{model}-{replica}"), "specification": "sha256:0",
        "model": model, "replica": replica, "engine": "vllm", "variant": "bf16", "accelerators": accelerators,
        "port": 20000 + node * 10 + cards[0] as usize, "state": "ready", "running": true, "load_ms": 40_000,
        "live_sessions": sessions });
    facts.nodes[node].instances.push(serde_json::from_value(instance).unwrap());
}

#[test]
fn victims_are_few_and_of_the_lowest_rank_and_say_who_takes_their_place() {
    let models = |first: &str| {
        format!(
            "model \"prod\" {{ source \"path:/prod\"; engine \"vllm\"; context 8192; priority \"high\"{first} }}\n\
            model \"mid\" {{ source \"path:/mid\"; engine \"vllm\"; context 8192; priority \"mid\"; replicas max=2 }}\n\
            model \"low\" {{ source \"path:/low\"; engine \"vllm\"; context 8192; priority \"low\"; replicas max=3 }}\n"
        )
    };
    let one = || quantised(&llama_70b(), "bf16", "bf16", 60 * GIB);
    let mut facts = inventory(&[("a100", &[A100; 4]), ("ada-1", &[A100]), ("ada-2", &[])]);
    runs(&mut facts, "mid", 0, 0, &[0], 0);
    runs(&mut facts, "mid", 1, 1, &[0], 0);
    runs(&mut facts, "low", 0, 0, &[1], 0);
    runs(&mut facts, "low", 1, 0, &[2], 9);
    runs(&mut facts, "low", 2, 0, &[3], 0);
    let all = || candidates(&[("prod", vec![llama_70b()]), ("mid", vec![one()]), ("low", vec![one()])]);
    let full = Lab::new(&models(""), facts.clone(), all());
    let victims = &full.placement.victims;
    let told: Vec<(&str, u32, &[String])> =
        victims.iter().map(|victim| (victim.model.as_str(), victim.replica, victim.by.as_slice())).collect();
    let prod = ["prod".to_owned()];
    assert_eq!(told, [("low", 0, &prod[..]), ("low", 2, &prod[..])], "the one with sessions stays: {victims:#?}");
    for victim in victims {
        assert!(victim.why.starts_with("2 instances of rank 10 are the fewest that make room"), "{}", victim.why);
        assert!(victim.why.contains("no other of that rank costs less to lose"), "{}", victim.why);
    }

    // Where nothing that could go makes room, nothing goes.
    let kept = Lab::new(&models("; place { require label=\"node\" is=\"ada-1\" }"), facts, all());
    assert!(kept.placement.victims.is_empty(), "{:#?}", kept.placement.victims);
    assert!(kept.placement.unplaced.iter().any(|unplaced| unplaced.model == "prod" && unplaced.required));
}

#[test]
fn the_terms_that_are_told_are_the_tier_that_was_solved() {
    let mut weighed = 0;
    for seed in 0..150 {
        let problem = random::problem(seed);
        let (placement, layout) = solve_with_layout(&problem, Watch::NONE);
        let costs = costs(&problem, &layout);
        for tier in &problem.tail {
            let solved = placement.solver.tiers.iter().find(|solved| solved.name == tier.name).unwrap();
            let told: f64 = costs.iter().filter(|c| c.tier == tier.name).map(|c| c.weight * c.total()).sum();
            // The order of equal places comes later and may use the slack of a tier.
            let slack = 1e-4 * solved.value.abs().max(1.0);
            assert!((told - solved.value).abs() <= slack, "seed {seed}, {}: {told} and {}", tier.name, solved.value);
            weighed += usize::from(told > 0.0);
        }
        // Two ways to count them agree, model by model.
        for (rows, plain) in costs.iter().zip(counted(&problem, &layout)) {
            assert!((rows.total() - plain.total()).abs() < 1e-6, "seed {seed}: {rows:?} and {plain:?}");
            for (a, b) in rows.by_model.iter().zip(&plain.by_model) {
                assert!((a - b).abs() < 1e-6, "seed {seed}: {rows:?} and {plain:?}");
            }
        }
    }
    assert!(weighed > 50, "{weighed}");
}

#[test]
fn a_forced_shape_is_as_good_as_the_best_placement_that_has_it() {
    use crate::placement::explain::rival::{Compared, Rivals};
    let (mut compared, mut seed) = (0, 0);
    while compared < 60 {
        seed += 1;
        let problem = random::problem(seed);
        // A model that wants one replica and has nothing yet: forcing a shape is leaving it only that one.
        let single = problem.models.iter().position(|m| {
            m.desired == 1 && m.shapes.len() > 1 && !problem.running.iter().any(|running| running.model == m.name)
        });
        let Some(model) = single else { continue };
        let base = crate::placement::explain::trial::answer(&problem);
        let rivals = Rivals::new(&problem, &base);
        for shape in 0..problem.models[model].shapes.len() {
            let mut only = problem.clone();
            only.models[model].shapes = vec![problem.models[model].shapes[shape].clone()];
            let least = crate::placement::explain::trial::answer(&only);
            if !least.layout.iter().any(|copy| copy.model == model) {
                continue;
            }
            let values = |answer: &crate::placement::exact::tiers::Answer, name: &str| {
                answer.tiers.iter().find(|tier| tier.name == name).map_or(0.0, |tier| tier.value)
            };
            let quality = |shapes: &[Shape]| {
                let best = &problem.models[model];
                shapes.iter().map(|s| best.deficit(s)).min().unwrap()
            };
            // The best variant counts anew where the others are gone.
            if problem.models[model].candidates.len() > 1 && quality(&only.models[model].shapes) > 0 {
                continue;
            }
            match rivals.force(model, shape) {
                Compared::Worse { tier, with, .. } => {
                    let expected = values(&least, &tier);
                    assert!(
                        (with - expected).abs() <= 2e-3 * expected.abs().max(1.0),
                        "seed {seed}: {tier}: {with} and {expected}"
                    );
                    compared += 1;
                }
                Compared::Equal => {
                    for tier in &base.tiers {
                        let expected = values(&least, &tier.name);
                        let near = 2e-3 * expected.abs().max(1.0);
                        assert!((tier.value - expected).abs() <= near, "seed {seed}: {tier:?} and {expected}");
                    }
                    compared += 1;
                }
                Compared::Impossible(_) => panic!("seed {seed}: the shape is taken where there is no other"),
            }
        }
    }
}

#[test]
fn what_a_model_sends_is_charged_to_it() {
    let mut charged = 0;
    for problem in (0..80).map(super::traffic::tiny).filter(|problem| problem.ways_out.is_empty()) {
        let (_, layout) = solve_with_layout(&problem, Watch::NONE);
        let costs = costs(&problem, &layout);
        let senders: Vec<bool> =
            problem.models.iter().map(|model| problem.traffic.iter().any(|t| t.from == model.name)).collect();
        for term in costs.iter().filter(|cost| cost.term == Term::Traffic) {
            assert!(term.shared.abs() < 1e-9, "{term:?}");
            for (by, sends) in term.by_model.iter().zip(&senders) {
                assert!(*sends || by.abs() < 1e-9, "{term:?}");
            }
            charged += usize::from(term.total() > 1e-6);
        }
    }
    assert!(charged > 3, "{charged}");
}

/// Two models that talk, on nodes 25 ms apart, with a limit of 10 ms.
fn apart() -> (String, Inventory) {
    let on = |name: &str, node: &str| {
        format!(
            "model \"{name}\" {{ source \"path:/{name}\"; engine \"vllm\"; context 8192; \
            place {{ require label=\"node\" is=\"{node}\" }} }}\nagent \"{name}-agent\" model=\"{name}\" {{ system \"x\" }}\n"
        )
    };
    let talk = "workflow \"w\" {\ntraffic from=\"a-agent\" to=\"b-agent\" max-latency=\"10ms\"\n\
        step \"one\" agent=\"a-agent\" { prompt \"Go.\" }\n}\n";
    let mut facts = lab();
    facts.links.push(crate::inventory::NodeLink {
        from: "a100".to_owned(),
        to: "ada-2".to_owned(),
        rtt_us: Some(25_000),
        bandwidth_bytes_per_s: Some(100_000_000),
        measured: true,
        ..Default::default()
    });
    (format!("{}{}{talk}", on("a", "a100"), on("b", "ada-2")), facts)
}

#[test]
fn a_limit_on_traffic_is_in_the_set_and_the_nearest_change_is_its_measured_value() {
    let (models, facts) = apart();
    let lab = Lab::new(&models, facts, candidates(&[("a", vec![llama_8b()]), ("b", vec![llama_8b()])]));
    let out = &lab.placement.unplaced;
    assert_eq!(out.len(), 1, "{out:#?}");
    assert!(out[0].nearest.contains("`max-latency` of 25 ms"), "{}", out[0].nearest);
    let found = together(&lab, &out[0].model);
    let alone = |word: &str| (word.to_owned(), true);
    assert!(found.contains(&alone("latency")), "{found:?}");
    for (word, alone) in &found {
        assert!(["latency", "selector", "model"].contains(&word.as_str()) && *alone, "{found:?}");
    }
    let told = lab.helped(&out[0].model);
    assert!(told.iter().any(|turn| turn.contains("`max-latency`")), "{told:#?}");
    assert!(!told.iter().any(|turn| turn.contains("would lose")), "{told:#?}");
    assert!(!told.iter().any(|turn| turn.contains("more accelerator")), "{told:#?}");
    // Nor does it "fit, but worse": the one place there is would be too far, and that is said as what it is.
    let name = &out[0].model;
    let why = lab.why(name);
    assert!(why.lost.iter().all(|group| group.by != LostBy::Worse), "{:#?}", why.lost);
    let own = if name == "a" { "a100" } else { "ada-2" };
    let mut here = lab.placement.considered.iter().filter(|one| one.model == *name && one.node == own);
    assert!(here.clone().any(|one| one.verdict.starts_with("latency: 25.0 ms to ")), "{:#?}", here.collect::<Vec<_>>());
    assert!(here.all(|one| !one.verdict.starts_with("fits")));
}

#[test]
fn what_a_way_lost_by_has_its_own_word() {
    let words = [
        ("memory", LostBy::Size),
        ("split", LostBy::Split),
        ("hardware", LostBy::Support),
        ("latency", LostBy::Latency),
        ("unreachable", LostBy::Away),
        ("quota", LostBy::Policy),
        ("selector", LostBy::Policy),
    ];
    for (word, by) in words {
        assert_eq!(LostBy::of(word), by, "{word}");
    }
}

#[test]
fn a_denial_that_stands_beside_is_named_and_nothing_denied_is_proposed() {
    // Too large for the cards, and denied there.
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192 }\n\
        deny \"never there\" { when \"model.name == 'big' && node.labels.tier == 'consumer'\" }\n";
    let only = || inventory(&[("a100", &[]), ("ada-1", &[CARD; 4]), ("ada-2", &[CARD; 4])]);
    let lab1 = Lab::new(models, only(), candidates(&[("big", vec![llama_70b()])]));
    let found = lab1.why("big").together;
    assert!(!found.is_empty() && found.iter().all(|o| o.constraint == "memory" && !o.alone), "{found:#?}");
    for obstacle in &found {
        assert!(obstacle.text.ends_with("without dropping the denial `never there` too"), "{}", obstacle.text);
    }
    assert!(!lab1.placement.unplaced[0].nearest.contains("accelerator"), "{}", lab1.placement.unplaced[0].nearest);

    // Room on a card that is denied: the proposal is about the denial, not about the card.
    let lab2 = Lab::new(models, only(), candidates(&[("big", vec![llama_8b()])]));
    let found = together(&lab2, "big");
    assert_eq!(found, [("deny".to_owned(), true)]);
    let nearest = &lab2.placement.unplaced[0].nearest;
    assert!(!nearest.contains("more accelerator") && nearest.contains("never there"), "{nearest}");
}

#[test]
fn a_quota_is_told_and_not_the_disk() {
    let models = "model \"a\" { source \"path:/a\"; engine \"vllm\"; context 8192; label \"g\" \"x\"; replicas min=2 }\n\
        quota \"q\" label=\"g\" is=\"x\" accelerators=1\n";
    let mut facts = lab();
    for node in &mut facts.nodes {
        node.disks.iter_mut().for_each(|disk| disk.free_bytes = 3000 * GIB);
    }
    let lab = Lab::new(models, facts, candidates(&[("a", vec![llama_8b()])]));
    let out = &lab.placement.unplaced[0];
    let reasons = &out.reasons;
    assert!(reasons.iter().any(|reason| reason.constraint == "quota"), "{reasons:#?}");
    assert!(reasons.iter().all(|reason| reason.constraint != "disk"), "{reasons:#?}");
    let why = lab.why("a");
    assert!(why.together.iter().any(|o| o.constraint == "quota"), "{:#?}", why.together);
}

#[test]
fn equal_nodes_get_the_same_proposal_and_the_smallest_is_first() {
    // A model on one card of one of two equal nodes: what is lacking there is no more, for that model can move.
    let models = "model \"big\" { source \"path:/big\"; engine \"vllm\"; context 8192; \
        place { require label=\"tier\" is=\"consumer\" } }\n\
        model \"chat\" { source \"path:/chat\"; engine \"vllm\"; context 8192; \
        place { require label=\"tier\" is=\"consumer\" } }\n";
    let both = candidates(&[("big", vec![llama_70b()]), ("chat", vec![llama_8b()])]);
    let lab = Lab::new(models, inventory(&[("a100", &[]), ("ada-1", &[CARD; 4]), ("ada-2", &[CARD; 4])]), both);
    lab.helped("big");
    let turns = lab.why("big").turns;
    let memory: Vec<(String, usize, u64)> = turns
        .iter()
        .filter_map(|turn| match &turn.change_made {
            Change::Memory { node, accelerators, bytes } => Some((node.clone(), accelerators.len(), *bytes)),
            _ => None,
        })
        .collect();
    let on = |name: &str| -> Vec<(usize, u64)> {
        memory.iter().filter(|(node, ..)| node == name).map(|(_, cards, bytes)| (*cards, *bytes)).collect()
    };
    assert!(!on("ada-1").is_empty() && on("ada-1") == on("ada-2"), "{memory:?}");
    assert!(memory.is_sorted_by_key(|(_, cards, bytes)| bytes * *cards as u64), "{memory:?}");
}
