//! The table of `model`, which `defaults` shares.

use super::schema::{Argument, NodeSpec, Type, arg, optional, prop, rest};

const COUNT: &[Argument] = &[arg("count", Type::Whole(1, 1 << 40))];
static SOURCE: NodeSpec =
    NodeSpec::new("source", "where its weights come from").args(&[arg("source", Type::Source)]).props(&[
        prop("sha256", Type::Sha256, "digest of what lies at a web address"),
        prop("revision", Type::Text, "branch, tag or commit"),
    ]);
static VARIANT: NodeSpec = NodeSpec::new("variant", "one set of weights, best first, instead of discovery")
    .args(&[arg("name", Type::Name)])
    .props(&[
        prop("source", Type::Source, "where they come from").required(),
        prop("revision", Type::Text, "branch, tag or commit"),
        prop("sha256", Type::Sha256, "digest of what lies at a web address"),
    ])
    .many();
static ENGINE: NodeSpec =
    NodeSpec::new("engine", "engines that may serve it").args(&[rest("engine", Type::Engine)]).default("any that can");
static CONTEXT: NodeSpec =
    NodeSpec::new("context", "tokens per request").args(COUNT).default("the trained length, at most 32768");
static CONCURRENCY: NodeSpec = NodeSpec::new("concurrency", "requests at once, per replica")
    .args(&[arg("count", Type::Whole(1, 100_000))])
    .default("1");
static QUALITY: NodeSpec = NodeSpec::new("quality", "the least that is acceptable")
    .default("any; the best that fits is taken")
    .props(&[prop("min", Type::Quality, "never below this, inclusive").required()]);
static KV_DTYPE: NodeSpec = NodeSpec::new("kv-dtype", "element type of the KV cache")
    .args(&[arg("type", Type::KvDtype)])
    .default("16 bits, as the engine has it");
static REPLICAS: NodeSpec = NodeSpec::new("replicas", "wanted copies").props(&[
    prop("min", Type::Whole(0, 1000), "fewer is infeasible; 0 makes it optional").default("1"),
    prop("max", Type::Whole(1, 1000), "desired").default("the larger of min and 1"),
]);
static PRIORITY: NodeSpec = NodeSpec::new("priority", "its priority class")
    .args(&[arg("name", Type::Name)])
    .default("rank 0, below every class");
static PLACE: NodeSpec = NodeSpec::new("place", "where it must and should run")
    .children(&[&REQUIRE, &PREFER, &SPREAD, &PACK, &NEAR, &ALLOW]);
static REQUIRE: NodeSpec = NodeSpec::new("require", "only on nodes with this label")
    .props(&[
        prop("label", Type::Name, "label, or `node`").required(),
        prop("is", Type::Scalar, "its value").required(),
    ])
    .many();
static PREFER: NodeSpec = NodeSpec::new("prefer", "rather on nodes with this label")
    .props(&[
        prop("label", Type::Name, "label, or `node`").required(),
        prop("is", Type::Scalar, "its value").required(),
        prop("weight", Type::Whole(1, 1000), "how much rather").default("1"),
    ])
    .many();
static SPREAD: NodeSpec =
    NodeSpec::new("spread", "replicas apart from each other")
        .props(&[prop("by", Type::Name, "`node`, or a label").required()]);
static PACK: NodeSpec = NodeSpec::new("pack", "on few nodes");
static NEAR: NodeSpec = NodeSpec::new("near", "close to an agent's model, or to a model")
    .props(&[prop("agent", Type::Name, "that agent"), prop("model", Type::Name, "that model")])
    .many();
static ALLOW: NodeSpec = NodeSpec::new("allow", "what is only done where it is allowed").props(&[
    prop("cpu", Type::Bool, "run on the CPU alone").default("#false"),
    prop("offload", Type::Bool, "keep some layers in host memory, with llama.cpp").default("#false"),
    prop(
        "nodes",
        Type::Bool,
        "share its layers out over several nodes, with llama.cpp: whoever reaches the workers' ports can use them",
    )
    .default("#false"),
]);
static ARGUMENT: NodeSpec = NodeSpec::new("argument", "a further engine argument")
    .args(&[arg("flag", Type::Text), optional("value", Type::Scalar)])
    .many();
static ENV: NodeSpec = NodeSpec::new("env", "environment of its engine")
    .args(&[arg("name", Type::EnvName), arg("value", Type::Scalar)])
    .many();
static WEIGHTS_FROM: NodeSpec =
    NodeSpec::new("weights-from", "whose quantisations are trusted").args(&[rest("owner", Type::Name)]);
static PART: NodeSpec = NodeSpec::new(
    "part",
    "parts of a vision-language model that may be placed apart; with llama.cpp, `vision` loads the projector",
)
.args(&[rest("name", Type::Word(&["vision", "language"]))])
.many();
static ADAPTER: NodeSpec =
    NodeSpec::new("adapter", "weights that are added").args(&[arg("source", Type::Source)]).many().later();
static LISTEN: NodeSpec =
    NodeSpec::new("listen", "where it is open to others").args(&[arg("address", Type::Listen)]).later();
static ROLLOUT: NodeSpec =
    NodeSpec::new("rollout", "how a new version comes").args(&[arg("how", Type::Word(&["surge", "recreate"]))]).later();
static ON_DRIFT: NodeSpec = NodeSpec::new("on-drift", "what is done about drift")
    .args(&[arg("what", Type::Word(&["correct", "report"]))])
    .later();
static LABEL: NodeSpec =
    NodeSpec::new("label", "a fact about it").args(&[arg("name", Type::Name), arg("value", Type::Scalar)]).many();
static OWNER: NodeSpec = NodeSpec::new("owner", "whose it is").args(&[arg("name", Type::Text)]);
static EXPIRES: NodeSpec = NodeSpec::new("expires", "until when it is wanted").args(&[arg("date", Type::Date)]).later();
static IDLE_STOP: NodeSpec =
    NodeSpec::new("idle-stop", "stopped after no request for this long").args(&[arg("time", Type::Duration)]).later();
static USE: NodeSpec = NodeSpec::new("use", "how it is used")
    .props(&[prop("typical-tokens", Type::Whole(1, 1 << 40), "tokens of a typical request").required()])
    .later();
static ON_OOM: NodeSpec = NodeSpec::new("on-oom", "what is done when memory runs out")
    .args(&[arg("what", Type::Word(&["shrink-context", "fail"]))])
    .later();
static PROVIDER: NodeSpec = NodeSpec::new("provider", "the external API that serves it")
    .args(&[arg("provider", Type::Name)])
    .props(&[prop("name", Type::Text, "the model's name there").required()]);
static MAX_LATENCY: NodeSpec =
    NodeSpec::new("max-latency", "longest way to the provider").args(&[arg("time", Type::DurationOrZero)]);

/// Children of `model` and of `defaults`.
pub(super) const MODEL_CHILDREN: &[&NodeSpec] = &[
    &SOURCE,
    &VARIANT,
    &ENGINE,
    &CONTEXT,
    &CONCURRENCY,
    &QUALITY,
    &KV_DTYPE,
    &REPLICAS,
    &PRIORITY,
    &PLACE,
    &ARGUMENT,
    &ENV,
    &WEIGHTS_FROM,
    &PART,
    &ADAPTER,
    &LISTEN,
    &ROLLOUT,
    &ON_DRIFT,
    &LABEL,
    &OWNER,
    &EXPIRES,
    &IDLE_STOP,
    &USE,
    &ON_OOM,
    &PROVIDER,
    &MAX_LATENCY,
];

/// `model`.
pub(super) static MODEL: NodeSpec =
    NodeSpec::new("model", "an LLM that is served").args(&[arg("name", Type::Name)]).children(MODEL_CHILDREN).many();
