//! The way between nodes and to providers, measured between real hosts.

use serde_json::Value;

use crate::support::lab::{HostSpec, Lab};
use crate::support::{list, number, text};

fn hosts() -> Vec<HostSpec> {
    ["a", "b", "c"].map(|name| HostSpec { name, tier: "lab", gpus: Vec::new() }).to_vec()
}

fn link<'v>(inventory: &'v Value, one: &str, other: &str) -> &'v Value {
    let joins = |link: &&Value| {
        let ends = [text(link, "/from"), text(link, "/to")];
        ends == [one, other] || ends == [other, one]
    };
    list(inventory, "/links").iter().find(joins).unwrap_or_else(|| panic!("no link {one}-{other} in {inventory:#}"))
}

/// A listener is there for a moment only: nothing listens afterwards, and nothing runs.
#[test]
fn links_are_measured_once_kept_and_told_by_every_command() {
    let lab = Lab::up(&hosts());
    let repository = lab.repository("");
    assert!(list(&repository.json(&["discover", "--no-measure"]), "/links").is_empty(), "nothing was measured yet");

    // One cable is forty milliseconds longer, each way.
    lab.slow("c", 40, 0, 0);
    let first = repository.flock(&["discover", "--format", "json"]).expect(0).json();
    lab.expect_nothing_left();
    assert_eq!(list(&first, "/links").len(), 3);
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        let link = link(&first, one, other);
        assert_eq!(link.pointer("/measured"), Some(&true.into()), "{link:#}");
        assert!(number(link, "/rtt_us") > 0 && number(link, "/bandwidth_bytes_per_s") > 0, "{link:#}");
    }
    let rtt = |inventory: &Value, one: &str, other: &str| number(link(inventory, one, other), "/rtt_us");
    for one in ["a", "b"] {
        let (near, far) = (rtt(&first, "a", "b"), rtt(&first, one, "c"));
        assert!(far >= 80_000, "two times forty milliseconds: {far}");
        assert!(far > near, "{far} {near}");
    }

    // What is known is not measured again, and `plan`'s own look at the nodes tells it too.
    lab.fast("c");
    let again = repository.json(&["discover"]);
    assert_eq!(rtt(&again, "a", "c"), rtt(&first, "a", "c"));
    assert!(number(link(&again, "a", "c"), "/age_ms") > 0);
    let shown = repository.flock(&["discover", "--no-measure"]);
    shown.expect(0).expect_says("Links (3)").expect_says("just now");

    // Unless it is asked for.
    let forced = repository.json(&["discover", "--measure"]);
    assert_ne!(rtt(&forced, "a", "c"), rtt(&first, "a", "c"));
    lab.expect_nothing_left();

    // The key of a measurement is nowhere on the nodes: what they keep are results.
    for host in ["a", "b", "c"] {
        let kept = lab.home(host, &format!(".local/share/flock/lab/{host}/links.json"));
        if let Ok(kept) = std::fs::read_to_string(kept) {
            assert!(!kept.contains("key"), "{kept}");
        }
    }
    repository.flock(&["destroy", "--yes"]).expect(0);
}

/// A firewall between two nodes is a fact with a reason, found once an hour, and bytes go through the controller.
#[test]
fn a_blocked_pair_is_known_as_such() {
    let lab = Lab::up(&hosts()[..2]);
    let repository = lab.repository("");
    let addresses = [lab.address("a"), lab.address("b")];
    for (host, other) in [("a", &addresses[1]), ("b", &addresses[0])] {
        lab.run(host, &["ip", "route", "add", "unreachable", other]).expect(0);
    }
    let found = repository.flock(&["discover", "--format", "json"]).expect(0).json();
    let blocked = link(&found, "a", "b");
    assert_eq!(blocked.pointer("/measured"), Some(&false.into()), "{blocked:#}");
    assert_eq!(blocked.pointer("/bandwidth_bytes_per_s"), Some(&Value::Null));
    assert!(number(blocked, "/rtt_us") > 0, "through the controller: {blocked:#}");
    let why = text(blocked, "/unknown/bandwidth_bytes_per_s");
    assert!(addresses.iter().any(|address| why.contains(address.as_str())), "{why}");
    lab.expect_nothing_left();

    // The way is free again, and nobody looks for an hour, unless told to.
    for (host, other) in [("a", &addresses[1]), ("b", &addresses[0])] {
        lab.run(host, &["ip", "route", "del", "unreachable", other]).expect(0);
    }
    let again = repository.json(&["discover"]);
    assert_eq!(link(&again, "a", "b").pointer("/measured"), Some(&false.into()));
    let text = repository.flock(&["discover", "--no-measure"]);
    text.expect(0).expect_says("round trip through this machine").expect_says("No route to host");
    let forced = repository.json(&["discover", "--measure"]);
    assert_eq!(link(&forced, "a", "b").pointer("/measured"), Some(&true.into()), "{forced:#}");
}

/// The time to connect to a provider, from every node, against a real listener on another host.
#[test]
fn nodes_know_how_far_a_provider_is() {
    let lab = Lab::up(&hosts());
    // Its own sshd is as good a listener as any.
    let url = format!("http://{}:22/v1", lab.address("c"));
    let nowhere = format!("http://{}:9/v1", lab.address("c"));
    let repository = lab.repository(&format!(
        "provider \"near\" kind=\"openai\" base-url=\"{url}\" {{ key env=\"NEAR_KEY\" }}\n\
         provider \"gone\" kind=\"openai\" base-url=\"{nowhere}\" {{ key env=\"GONE_KEY\" }}\n"
    ));
    lab.slow("b", 30, 0, 0);
    let found = repository.flock(&["discover", "--format", "json"]).expect(0).json();
    let egress = |inventory: &Value, node: &str, port: u16| {
        let endpoint = format!("{}:{port}", lab.address("c"));
        let wanted = |one: &&Value| text(one, "/node") == node && text(one, "/endpoint") == endpoint;
        list(inventory, "/egress").iter().find(wanted).cloned().unwrap_or_else(|| panic!("{inventory:#}"))
    };
    let near = |node: &str| number(&egress(&found, node, 22), "/rtt_us");
    assert!(near("a") > 0 && near("b") >= 60_000 && near("b") > near("a"), "{} {}", near("a"), near("b"));
    let gone = egress(&found, "a", 9);
    assert_eq!(gone.pointer("/rtt_us"), Some(&Value::Null));
    assert!(text(&gone, "/unknown/rtt_us").contains("refused"), "{gone:#}");
    let again = repository.json(&["discover"]);
    assert_eq!(number(&egress(&again, "a", 22), "/rtt_us"), near("a"), "not measured again within a day");
    let shown = repository.flock(&["discover", "--no-measure"]);
    shown.expect(0).expect_says("Ways out (6)");
    // A provider that left the config is no longer shown, whatever the nodes remember.
    repository.write("cluster.kdl", lab.cluster(""));
    assert!(list(&repository.json(&["discover"]), "/egress").is_empty());
}

/// A plan takes the nearest way out without being told to measure, an apply remembers it, and a limit is hard.
#[test]
fn a_provider_is_reached_through_the_node_that_is_nearest_to_it() {
    let lab = Lab::up(&hosts());
    // Its own sshd is as good a listener as any, and `c` is nearer to itself than anybody else.
    let config = |more: &str| {
        format!(
            "provider \"near\" kind=\"openai\" base-url=\"http://{}:22/v1\" {{ key env=\"NEAR_KEY\" }}\n\
             model \"far\" {{ provider \"near\" name=\"far\"{more} }}\n\
             agent \"planner\" model=\"far\" {{ system \"You plan.\" }}\n",
            lab.address("c")
        )
    };
    let repository = lab.repository(&config("; max-latency \"35ms\""));
    lab.slow("c", 20, 0, 0);
    let plan = repository.json(&["plan"]);
    let way = &list(&plan, "/egress")[0];
    assert_eq!(
        (text(way, "/node"), text(way, "/agent"), text(way, "/provider_model")),
        ("c", "planner", "far"),
        "{plan:#}"
    );
    for other in list(way, "/others") {
        assert!(number(other, "/rtt_us") >= 40_000, "two times twenty milliseconds: {way:#}");
    }
    // Nothing is to be done but to remember it.
    repository.flock(&["apply", "--yes"]).expect(0);
    let found = repository.json(&["discover", "--no-measure"]);
    let kept = &list(&found, "/member/egress")[0];
    assert_eq!((text(kept, "/node"), text(kept, "/agent")), ("c", "planner"), "{found:#}");

    // What goes through a node that is cordoned later stays; drained, it must leave, and nobody else is near enough.
    repository.flock(&["cordon", "c", "--reason", "fans"]).expect(0);
    assert_eq!(text(&repository.json(&["plan"]), "/egress/0/node"), "c");
    repository.flock(&["uncordon", "c"]).expect(0);
    repository.write("cluster.kdl", lab.cluster_without("c", &config("; max-latency \"35ms\"")));
    let refused = repository.flock(&["plan", "--format", "json"]).expect(4).json();
    for reason in list(&refused, "/unplaced/0/reasons") {
        assert!(number(reason, "/available") >= 40_000 && number(reason, "/needed") == 35_000, "{refused:#}");
    }
    repository.write("cluster.kdl", lab.cluster_without("c", &config("")));
    let plan = repository.json(&["plan"]);
    assert!(["a", "b"].contains(&text(&plan, "/egress/0/node")), "{plan:#}");
}
