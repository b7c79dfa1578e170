//! Small inputs with one fault each: the id, the exact place, and what is said about it.

use super::*;

/// A cluster block in the first line, so that cases begin in line 2.
const HEAD: &str = "cluster \"lab\" { }\n";

struct Case {
    /// Appended to [`HEAD`].
    text: &'static str,
    id: &'static str,
    line: usize,
    column: usize,
    /// Part of the message or the hint.
    says: &'static str,
}

const fn case(text: &'static str, id: &'static str, line: usize, column: usize, says: &'static str) -> Case {
    Case { text, id, line, column, says }
}

/// Cases about syntax and tables.
const WRITING: &[Case] = &[
    case("nod \"a\" address=\"x\"", "FLK110", 2, 1, "did you mean `node`?"),
    case("ssh user=\"x\"", "FLK110", 2, 1, "into a `cluster` or `node` block"),
    case("model \"m\" { source \"hf:a/b\"; contxt 4 }", "FLK110", 2, 30, "did you mean `context`?"),
    case("model \"m\" { source \"hf:a/b\"; node \"a\" }", "FLK110", 2, 30, "at the top of a file"),
    case("node \"a\" { address \"10.0.0.1\" user \"x\" }", "FLK112", 2, 31, "`user`"),
    case("node \"a\" address=\"x\" { hold \"r\" spot }", "FLK112", 2, 33, "on its own line, or write `;` before it"),
    case("node \"a\" adress=\"x\"", "FLK111", 2, 10, "did you mean `address`?"),
    case("node \"a\" address=\"x\" address=\"y\"", "FLK115", 2, 22, "`address` is given twice"),
    case("node \"a\" address=5", "FLK117", 2, 18, "in quotes"),
    case("node address=\"x\"", "FLK113", 2, 1, "`node` needs a name"),
    case("node \"a\"", "FLK114", 2, 6, "no address"),
    case("node \"a\" connection=\"lokal\"", "FLK120", 2, 21, "did you mean `local`?"),
    case("node \"a\" connection=\"local\" address=\"x\"", "FLK126", 2, 29, "no address"),
    case("node \"a\" address=\"u@h\"", "FLK123", 2, 18, "ssh user="),
    case("node \"a\" address=\"x\" { hold \"r\"; hold \"s\" }", "FLK116", 2, 34, "`hold` is given twice"),
    case("node \"a\" address=\"x\" { spot { } }", "FLK122", 2, 24, "takes no block"),
    case("node (x)\"a\" address=\"x\"", "FLK121", 2, 6, "type annotation"),
    case("node \"a\" address=\"x\" { reserve vram=2 }", "FLK118", 2, 37, "write \"2GiB\""),
    case("node \"a\" address=\"x\" { reserve vram=\"2Gib\" }", "FLK118", 2, 37, "did you mean `GiB`?"),
    case("node \"a\" address=\"x\" { reserve vram=\"24\" }", "FLK118", 2, 37, "write \"24GiB\""),
    case("node \"a\" address=\"x\" { ssh connect-timeout=5 }", "FLK118", 2, 44, "write \"5s\""),
    case("node \"a\" address=\"x\" { ssh connect-timeout=\"0s\" }", "FLK119", 2, 44, "such as \"5s\""),
    case("limit download=\"0B/s\"", "FLK119", 2, 16, "a rate above zero"),
    case("limit download=\"0.0 MB/s\"", "FLK119", 2, 16, "at which no transfer ever ends"),
    case("tool \"t\" { mcp \"x\"; output-limit \"0KiB\" }", "FLK119", 2, 34, "nothing"),
    case("tool \"t\" { mcp \"x\"; timeout \"0ms\" }", "FLK119", 2, 29, "nothing"),
    case("node \"a\" address=\"x\" { ssh port=70000 }", "FLK119", 2, 33, "from 1 to 65535"),
    case("node \"a\" address=\"x\" { ssh port=\"22\" }", "FLK117", 2, 33, "without quotes"),
    case("node \"a\" address=\"x\" { price 1.2 }", "FLK118", 2, 30, "1.20/h"),
    case("node \"a\" address=\"x\" { ports \"5-1\" }", "FLK119", 2, 30, "lower port first"),
    case("engine \"vllm\" { env \"CUDA_VISIBLE_DEVICES\" \"0\" }", "FLK133", 2, 21, "is set by flock"),
    case("node \"a\" address=\"x\" { env \"FLOCK_INSTANCE\" \"0\" }", "FLK133", 2, 28, "is set by flock"),
    case("engine \"vllm\" { module \"-rf\" }", "FLK123", 2, 24, "begin with a dash"),
    case("engine \"vllm\" { container image=\"a b\" }", "FLK123", 2, 33, "vllm-openai"),
    case("node \"a\" address=\"x\" { weights path=\"data\" }", "FLK135", 2, 37, "from `/` or `~/`"),
    case("node \"a\" address=\"x\" { label \"node\" \"b\" }", "FLK126", 2, 24, "own name"),
    case("node \"a\" address=\"x\" { label \"t\" \"1\"; label \"t\" \"2\" }", "FLK116", 2, 45, "given twice"),
    case("node \"a\" context=5 address=\"x\"", "FLK111", 2, 10, "`context`"),
    case("node \"a b\" address=\"x\"", "FLK123", 2, 6, "blank in a name"),
    case("node \"$(id)\" address=\"x\"", "FLK123", 2, 6, "`$` in a name"),
    case("node \"\" address=\"x\"", "FLK123", 2, 6, "empty"),
    case("node \"-a\" address=\"x\"", "FLK123", 2, 6, "begins with `-`"),
    case("model \"a/b\" { source \"hf:a/b\" }", "FLK123", 2, 7, "`/` in a name"),
    case("node \"a-[01-08]\" address=\"x\"", "FLK125", 2, 26, "`{}`"),
    case("node \"a-[08-01]\" address=\"x{}\"", "FLK125", 2, 6, "upwards"),
    case("node \"a\" address=\"x-{}\"", "FLK125", 2, 18, "single node"),
    case("model \"m\" { source \"hf:a/b\"; allow cpu=#true }", "FLK110", 2, 30, "`place`"),
    case("model \"m\" { source \"hf:a/b\"\n  place { allow cpu=true }\n}", "FLK105", 3, 21, "KDL 2 writes `#true`"),
    case("model \"m\" {\n  source \"hf:a/b\"\n", "FLK104", 2, 11, "ends `model`"),
    case("model \"m\" {\n  place {\n    pack\n\n}\nnode \"a\" address=\"x\"\n", "FLK104", 3, 9, "ends `place`"),
    case("node \"a\" address=\"x\" }", "FLK103", 2, 22, "without an opening"),
    case("node \"a\" address=\"x\"\n{ spot }", "FLK103", 3, 1, "same line as its node"),
    case("node \"a\", address=\"x\"", "FLK103", 2, 9, "without commas"),
    case("node = \"a\"", "FLK103", 2, 6, "without `=`"),
    case("node \"a", "FLK104", 2, 6, "close it with"),
    case("node \"a\nprune \"keep\"", "FLK103", 2, 6, "line ends inside a string"),
    case("model \"m\" { source \"hf:a/b\"; context 16k }", "FLK103", 2, 38, "no number"),
    case("node r\"a\" address=\"x\"", "FLK103", 2, 7, "#\"…\"#"),
    case("node \"a\" address=10.0.0.1", "FLK103", 2, 18, "\"10.0.0.1\" in quotes"),
    case("node \"a\" address=\"x\" { hold \"a\\u{0}\" }", "FLK119", 2, 29, "NUL"),
    case("node \"a\" address=\"x\" { hold \"a\\u{1b}[2J\" }", "FLK119", 2, 29, "U+001B"),
    case("node \"a\" address=\"x\" { hold \"a\u{9b}2J\" }", "FLK119", 2, 29, "U+009B"),
    case("node \"a\" address=\"x\" { hold \"a\\u{202e}b\" }", "FLK119", 2, 29, "U+202E"),
    case("/* never closed", "FLK104", 2, 1, "close it with `*/`"),
    case("node \"\\q\"", "FLK103", 2, 6, "unknown escape"),
];

/// What people write who come from elsewhere, each with one finding that says what to write instead.
const HABITS: &[Case] = &[
    case("node \u{201c}a\u{201d} address=\"x\"", "FLK103", 2, 6, "straight double quotes: \"a\""),
    case("node \u{201c}a b\u{201d} address=\"x\"", "FLK103", 2, 6, "straight double quotes"),
    case("node \"a\" address=\u{201c}10.0.0.1\u{201d}", "FLK103", 2, 18, "double quotes: \"10.0.0.1\""),
    case("node 'a' address=\"x\"", "FLK103", 2, 6, "straight double quotes: \"a\""),
    case("# my nodes: a, b {", "FLK103", 2, 1, "comments begin with `//`"),
    case("#!/usr/bin/env flock", "FLK103", 2, 1, "remove the line"),
    case("node \"a\" address=\"x\" # my node", "FLK103", 2, 22, "comments begin with `//`"),
    case("node \"a\" address=\"x\" { hold \"r\" # why }\n}", "FLK103", 2, 33, "comments begin with `//`"),
    case("-- my nodes", "FLK110", 2, 1, "comments begin with `//`"),
    case("model \"m\" {\n  source: \"hf:a/b\"\n}", "FLK110", 3, 3, "write `source \"hf:a/b\"`"),
    case("model:", "FLK110", 2, 1, "KDL has no `:`: write `model … { … }`"),
    case("model \"m\" {\n  \"source\": \"hf:a/b\"\n}", "FLK103", 3, 11, "a setting is `source value`"),
    case("node \"a\" address:\"x\"", "FLK103", 2, 17, "`address=\"x\"`"),
    case("node \"a\" address==\"x\"", "FLK103", 2, 18, "one is enough"),
    case("node \"a\" \u{200b}address=\"x\"", "FLK111", 2, 10, "U+200B"),
    case("node \"a address=\"x\"", "FLK104", 2, 6, "add the missing `\"`: \"a\""),
    case("node \"a address=\"10.0.0.1\" { spot }\nprune \"keep\"", "FLK104", 2, 6, "\"a\""),
    case("model \"m\"\n{\n  source \"hf:a/b\"\n}", "FLK103", 3, 1, "put it behind `model`"),
    case("[node]", "FLK103", 2, 1, "no `[section]`"),
    case("model \"m\" { source \"hf:a/b\"; min \"int8\" }", "FLK110", 2, 30, "write `quality min=\"int8\"`"),
    case("node \"a\" address \"10.0.0.1\"", "FLK112", 2, 10, "write `address=\"10.0.0.1\"`"),
    case("model \"m\" source \"hf:a/b\"", "FLK112", 2, 11, "`{ source \"hf:a/b\" }`"),
    case("model \"m\" { source hf:a/b }", "FLK103", 2, 24, "quote it: \"hf:a/b\""),
    case("engine \"llama.cpp\" { path /opt/llama }", "FLK103", 2, 27, "a path needs quotes: \"/opt/llama\""),
    case("model \"m\" { source \"hf:a/b\"; context 16k }", "FLK103", 2, 38, "write 16384"),
    case("model \"m\" { source \"hf:a/b\"; context \"16k\" }", "FLK117", 2, 38, "write 16384 without quotes"),
    case("model \"m\" {\n  - \"a\"\n  source \"hf:a/b\"\n}", "FLK110", 3, 3, "KDL has no `-`"),
    case("protect \"m\"", "FLK112", 2, 9, "write `protect model=\"m\"`"),
    case("model \"m\" { source \"hf:a/b\"; replicas 3 }", "FLK112", 2, 39, "write `replicas min=… max=…`"),
    case("model \"m\" { source \"hf:a/b\"; kv-cache \"fp8\" }", "FLK110", 2, 30, "did you mean `kv-dtype`?"),
    case("model \"m\" { source \"hf:a/b\"; max-context 4 }", "FLK110", 2, 30, "did you mean `context`"),
    case("provider \"p\" kind=\"anthropic\" { api-key \"x\" }", "FLK110", 2, 33, "did you mean `key`?"),
    case(
        "node \"a\" address=\"x\" { label \"t\" \"g\" ssh user=\"me\" port=22 }",
        "FLK112",
        2,
        38,
        "put `ssh` on its own line",
    ),
    case("priority \"p\" rank=5 preempts=yes", "FLK117", 2, 30, "write #true"),
    case("provider \"p\" kind=\"anthropic\" { key env=\"$A_KEY\" }", "FLK123", 2, 41, "without the `$`: \"A_KEY\""),
];

/// Cases about meaning.
const MEANING: &[Case] = &[
    case("model \"m\" { }", "FLK114", 2, 7, "where its weights come from"),
    case("model \"m\" { source \"meta/llama\" }", "FLK134", 2, 20, "hf:meta/llama"),
    case("model \"m\" { source \"https://x/y\" }", "FLK134", 2, 20, "sha256="),
    case("model \"m\" { source \"path:../../x\" }", "FLK135", 2, 20, "leaves the repository"),
    case("model \"m\" { source \"path:x.gguf\" }", "FLK136", 2, 20, "does not exist"),
    case("model \"m\" { source \"hf:a/b\"; engine \"vlm\" }", "FLK120", 2, 37, "did you mean `vllm`?"),
    case("model \"m\" { source \"hf:a/b\"; quality min=\"int3\" }", "FLK120", 2, 42, "did you mean `int8`?"),
    case("model \"m\" { source \"hf:a/b\"; context 0 }", "FLK119", 2, 38, "at least 1"),
    case("model \"m\" { source \"hf:a/b\"; context \"8192\" }", "FLK117", 2, 38, "without quotes"),
    case("model \"m\" context=8192 { source \"hf:a/b\" }", "FLK111", 2, 11, "`context 8192`"),
    case("model \"m\" { source \"hf:a/b\"; priority \"x\" }", "FLK132", 2, 39, "priority \"x\" rank=50"),
    case("model \"m\" { source \"hf:a/b\"; replicas min=3 max=2 }", "FLK119", 2, 49, "not below `min`"),
    case("model \"m\" { source \"hf:a/b\"; replicas 2 }", "FLK112", 2, 39, "max=…"),
    case(
        "model \"m\" { source \"hf:a/b\"; engine \"vllm\"; argument \"--max_model_len\" \"5\" }",
        "FLK133",
        2,
        54,
        "`context`",
    ),
    case("model \"m\" { source \"hf:a/b\"; argument \"-c\" 5 }", "FLK133", 2, 39, "llama.cpp"),
    case("model \"m\" { source \"hf:a/b\"; argument \"--hf-token=x\" }", "FLK133", 2, 39, "remove it: every user"),
    case("model \"m\" { source \"hf:a/b\"; argument \"--headless\" }", "FLK133", 2, 39, "`replicas`"),
    case("model \"m\" { source \"hf:a/b\"; place { near agent=\"x\" } }", "FLK131", 2, 49, "no agent is named `x`"),
    case("model \"m\" { provider \"p\" name=\"x\" }", "FLK131", 2, 22, "no provider"),
    case(
        "provider \"p\" kind=\"anthropic\"\nmodel \"m\" { provider \"p\" name=\"x\"; engine \"vllm\" }",
        "FLK126",
        3,
        36,
        "models on nodes",
    ),
    case("provider \"p\" kind=\"openai\"", "FLK114", 2, 10, "base-url"),
    case("provider \"p\" kind=\"anthropic\" { key \"x\" }", "FLK124", 2, 37, "env="),
    case("provider \"p\" kind=\"anthropic\" { key env=\"A\" file=\"~/x\" }", "FLK126", 2, 45, "keep one"),
    case("provider \"p\" kind=\"anthropic\" base-url=\"https://u:p@x\"", "FLK124", 2, 40, "login"),
    case("agent \"a\" model=\"x\"", "FLK131", 2, 17, "no model is named `x`"),
    case("tool \"t\" { }", "FLK114", 2, 6, "how it is reached"),
    case("tool \"t\" { mcp \"x\" node=\"zz\" }", "FLK131", 2, 25, "no node is named `zz`"),
    case("protect model=\"zz\"", "FLK131", 2, 15, "no model"),
    case("limit stop-share=25", "FLK118", 2, 18, "\"25%\""),
    case("limit download=\"200MB\"", "FLK118", 2, 16, "200MB/s"),
    case("prune \"no\"", "FLK120", 2, 7, "`keep`"),
    case("prune \"keep\"\nprune \"auto\"", "FLK116", 3, 1, "`prune` is given twice"),
    case("approval verbs=\"stop\" by=\"@nobody\"", "FLK131", 2, 26, "no group"),
    case("window \"w\" deny=\"move\" from=\"9:00\" to=\"18:00\" zone=\"UTC\"", "FLK117", 2, 29, "09:00"),
    case("window \"w\" deny=\"move\" from=\"09:00\" to=\"25:00\" zone=\"UTC\"", "FLK117", 2, 40, "09:00"),
    case(
        "window \"w\" deny=\"move\" from=\"09:00\" to=\"18:00\" zone=\"zurich\"",
        "FLK151",
        2,
        53,
        "did you mean \"Europe/Zurich\"?",
    ),
    case("window \"w\" deny=\"move\" from=\"09:00\" to=\"18:00\" zone=\"CEST\"", "FLK151", 2, 53, "name of a place"),
    case(
        "window \"w\" deny=\"move\" days=\"mo-fr\" from=\"09:00\" to=\"18:00\" zone=\"UTC\"",
        "FLK120",
        2,
        29,
        "mon-fri",
    ),
    case("deny \"d\" { when \"model.gatd\" }", "FLK150", 2, 18, "did you mean `model.gated`?"),
    case("deny \"d\" { when \"model.gated && node.labels.tier = 'cloud'\" }", "FLK150", 2, 50, "`==`"),
    case("deny \"d\" { when #\"model.gated && node.name\"# }", "FLK150", 2, 17, "compare it"),
    case("deny \"d\" { }", "FLK114", 2, 1, "when"),
    case("priority \"p\" rank=0", "FLK119", 2, 19, "from 1 to"),
    case("priority \"p\"", "FLK114", 2, 1, "rank="),
    case("include \"nodes/*.kdl\"", "FLK137", 2, 9, "no .kdl file matches"),
    case("include \"../x.kdl\"", "FLK135", 2, 9, "leaves the repository"),
    case("cluster \"two\" { }", "FLK116", 2, 1, "second `cluster`"),
    case("node \"a\" address=\"x\"\nnode \"a\" address=\"y\"", "FLK130", 3, 6, "declared twice"),
    case("node \"a-[1-3]\" address=\"x{}\"\nnode \"a-2\" address=\"y\"", "FLK130", 3, 6, "`a-2` is declared twice"),
    case("engine \"vllm\" { path \"bin/vllm\" }", "FLK135", 2, 22, "from `/`"),
    case("engine \"vllm\" { path \"/x\" node=\"zz\" }", "FLK131", 2, 32, "no node"),
];

/// Cases inside `workflow "w" { … }` with an agent `a`, each on one line.
const PROGRAMS: &[Case] = &[
    case("step \"s\" agent=\"b\" { prompt \"x\" }", "FLK131", 1, 16, "did you mean `a`?"),
    case("step \"s\" agent=\"a\"", "FLK114", 1, 10, "asked nothing"),
    case("step \"s\"", "FLK147", 1, 6, "does nothing"),
    case("step \"s\" agent=\"a\" after=\"t\" { prompt \"x\" }", "FLK140", 1, 26, "no step `t`"),
    case("step \"s\" agent=\"a\" { prompt \"{{ input.q }}\" }", "FLK144", 1, 30, "no input `q`"),
    case("step \"s\" agent=\"a\" { prompt \"{{ question }}\" }", "FLK144", 1, 30, "unknown variable `question`"),
    case("step \"s\" agent=\"a\" { prompt \"{{ steps.z.text }}\" }", "FLK140", 1, 30, "no step `z`"),
    case("step \"s\" agent=\"a\" { prompt \"{{ steps.s.text }}\" }", "FLK144", 1, 30, "its own answer"),
    case("step \"s\" agent=\"a\" { prompt \"{{ item }}\" }", "FLK144", 1, 30, "without `for-each`"),
    case("step \"s\" agent=\"a\" { prompt \"{{ a b }}\" }", "FLK143", 1, 30, "no reference"),
    case("step \"s\" agent=\"a\" { prompt \"x {{ a\" }", "FLK143", 1, 32, "without `}}`"),
    case("step \"s\" agent=\"a\" { prompt file=\"x.md\" }", "FLK136", 1, 34, "`workflows/x.md` does not exist"),
    case("step \"s\" agent=\"a\" { prompt \"x\"; output schema=\"x.json\" }", "FLK136", 1, 48, "does not exist"),
    case(
        "step \"s\" agent=\"a\" { prompt \"x\"; output schema=\"/x.json\" }",
        "FLK135",
        1,
        48,
        "outside the repository",
    ),
    case("step \"s\" agent=\"a\" { prompt \"x\"; for-each \"many\" }", "FLK145", 1, 43, "over a text"),
    case(
        "input \"q\"; step \"s\" agent=\"a\" { prompt \"x\"; for-each \"{{ input.q }}\" }",
        "FLK145",
        1,
        55,
        "no list",
    ),
    case(
        "step \"t\" agent=\"a\" { prompt \"x\" }; step \"s\" agent=\"a\" after=\"t\" { prompt \"x\"; for-each \"{{ steps.t.text }}\" }",
        "FLK145",
        1,
        89,
        "no list",
    ),
    case(
        "step \"t\" agent=\"a\" { prompt \"x\" }; step \"s\" agent=\"a\" after=\"t\" { prompt \"{{ steps.t.json.x }}\" }",
        "FLK144",
        1,
        75,
        "output schema",
    ),
    case(
        "step \"t\" agent=\"a\" { prompt \"x\" }; step \"s\" agent=\"a\" after=\"t\" { prompt \"{{ steps.t.texts }}\" }",
        "FLK144",
        1,
        75,
        "steps.t.text",
    ),
    case(
        "step \"t\" agent=\"a\" { prompt \"x\" }; step \"s\" agent=\"a\" { prompt \"{{ steps.t.text }}\" }",
        "FLK144",
        1,
        65,
        "after=\"t\"",
    ),
    case(
        "step \"t\" agent=\"a\" after=\"s\" { prompt \"x\" }; step \"s\" agent=\"a\" after=\"t\" { prompt \"x\" }",
        "FLK141",
        1,
        71,
        "s after t after s",
    ),
    case("step \"s\" agent=\"a\" after=\"s\" { prompt \"x\" }", "FLK141", 1, 26, "s after s"),
    case(
        "step \"s\" agent=\"a\" after=\"s\" { prompt \"x\" }; step \"u\" agent=\"a\" after=\"s\" { prompt \"x\" }",
        "FLK142",
        1,
        51,
        "can never run",
    ),
    case("keep \"1h\"; step \"s\" agent=\"a\" { prompt \"x\"; timeout \"2h\" }", "FLK146", 1, 53, "longer than"),
    case(
        "step \"s\" agent=\"a\" { prompt \"x\"; repeat \"t\" until=\"{{ steps.s.text }}\" at-most=2 }",
        "FLK140",
        1,
        41,
        "no step `t`",
    ),
    case(
        "step \"s\" agent=\"a\" { prompt \"x\"; repeat \"s\" until=\"{{ steps.s.text }}\" }",
        "FLK114",
        1,
        34,
        "at-most=",
    ),
    case("step \"s.t\" agent=\"a\" { prompt \"x\" }", "FLK123", 1, 6, "templates"),
    case("step \"s\" agent=\"a\" { prompt \"x\"; workflow \"w\" }", "FLK126", 1, 34, "two steps"),
    case("step \"s\" { workflow \"w\" }", "FLK141", 0, 0, "circle"),
    case("keep \"72\"; step \"s\" agent=\"a\" { prompt \"x\" }", "FLK118", 1, 6, "\"72s\""),
    case("", "FLK147", 0, 0, "no step"),
    case(
        "traffic from=\"a\" to=\"zz\"; step \"s\" agent=\"a\" { prompt \"x\" }",
        "FLK131",
        1,
        21,
        "no agent is named `zz`",
    ),
];

fn expect(loaded: &Loaded, case: &Case, file: &str, faults: &mut Vec<String>) {
    let hit = loaded.diagnostics.iter().any(|found| {
        let said = found.message.contains(case.says) || found.hint.as_deref().unwrap_or_default().contains(case.says);
        let placed = case.line == 0 || (found.line, found.column) == (Some(case.line), Some(case.column));
        found.id == case.id && found.file.as_deref() == Some(file) && placed && said && found.hint.is_some()
    });
    if !hit {
        faults.push(format!(
            "{:?}\n  wanted {} {}:{} {:?}\n  found {:#?}",
            case.text,
            case.id,
            case.line,
            case.column,
            case.says,
            errors(loaded)
        ));
    }
}

#[test]
fn small_faults_are_found_where_they_are() {
    let mut faults = Vec::new();
    for case in WRITING.iter().chain(HABITS).chain(MEANING) {
        expect(&load_cluster(&format!("{HEAD}{}", case.text)), case, "cluster.kdl", &mut faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn one_fault_gives_one_finding() {
    let mut faults = Vec::new();
    for case in WRITING.iter().chain(HABITS).chain(MEANING) {
        let loaded = load_cluster(&format!("{HEAD}{}", case.text));
        if errors(&loaded).len() != 1 {
            faults.push(format!("{:?}\n  {:#?}", case.text, errors(&loaded)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn json_is_told_from_kdl_at_once() {
    for text in ["{\n  \"cluster\": { \"name\": \"lab\" }\n}", "\n{\"node\": []}"] {
        let found = errors(&load_cluster(text));
        assert!(found.len() == 1 && found[0].contains("this looks like JSON"), "{found:#?}");
    }
}

#[test]
fn workflows_are_checked_as_programs() {
    let mut faults = Vec::new();
    let cluster = "cluster \"lab\" { }\nprovider \"p\" kind=\"anthropic\"\nmodel \"m\" { provider \"p\" name=\"x\" }\nagent \"a\" model=\"m\"\n";
    for case in PROGRAMS {
        let text = format!("workflow \"w\" {{ \\\n{}\n}}", case.text);
        let text = text.replacen(" \\\n", "", 1).replacen('{', "{\n", 1);
        let shifted = Case { line: if case.line == 0 { 0 } else { 2 }, ..*case };
        expect(
            &load(&text_tree(&[("cluster.kdl", cluster), ("workflows/w.kdl", &text)])),
            &shifted,
            "workflows/w.kdl",
            &mut faults,
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn keys_are_found_and_never_repeated() {
    let key = format!("sk-{}", "Ab3".repeat(10));
    for text in [
        format!("provider \"p\" kind=\"anthropic\" {{ key \"{key}\" }}"),
        format!("provider \"p\" kind=\"anthropic\" {{ key env=\"{key}\" }}"),
        format!("node \"a\" address=\"x\" {{ hold \"{key}\" }}"),
        format!("node \"a\" address=\"x\" \"{key}\""),
        // In a word that is not known, and in one whose hint would write the value again.
        format!("provider \"p\" kind=\"anthropic\" {{ api-key \"{key}\" }}"),
        format!("provider \"p\" kind=\"anthropic\" {{ key: \"{key}\" }}"),
        format!("provider \"p\" kind=\"anthropic\" {{ login {{ user \"me\" secret=\"{key}\" }} }}"),
        format!("protect \"{key}\""),
        format!("ai provider=\"{key}\""),
        format!("model \"m\" {{ source \"hf:a/b\"; env \"MY_TOKEN\" \"{}\" }}", "a1b2c3d4".repeat(2)),
        format!("model \"m\" {{ source \"hf:a/b\"; argument \"--thing\" \"{}\" }}", "a1b2c3d4".repeat(4)),
    ] {
        let loaded = load_cluster(&format!("{HEAD}{text}"));
        assert!(loaded.diagnostics.iter().any(|found| found.id == "FLK124"), "{text}: {:#?}", errors(&loaded));
        assert!(!format!("{:?}", loaded.diagnostics).contains(&key), "{:#?}", errors(&loaded));
    }
    let fine = "model \"m\" { source \"hf:a/b\"; env \"HF_HOME\" \"/data/hf\"; env \"OMP_NUM_THREADS\" 8 }";
    assert!(load_cluster(&format!("{HEAD}{fine}")).desired.is_some());
}

#[test]
fn encodings_are_told_apart() {
    let load_bytes = |bytes: &[u8]| {
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(bytes.to_vec()));
        load(&tree)
    };
    let bom = load_bytes(b"\xef\xbb\xbfclustr \"lab\" { }");
    assert!(bom.diagnostics.iter().any(|found| (found.id, found.column) == ("FLK110", Some(1))));
    let crlf = load_bytes(b"cluster \"lab\" { }\r\n\r\n  nod \"a\"\r\n");
    assert_eq!((crlf.diagnostics[0].line, crlf.diagnostics[0].column), (Some(3), Some(3)));
    let wide = load_bytes("cluster \"lab\" { }\nnode \"\u{e9}\u{1f600}\" adress=\"x\"".as_bytes());
    assert_eq!(wide.diagnostics.iter().map(|found| found.column).collect::<Vec<_>>(), [Some(6), Some(11)]);
    let latin = load_bytes(b"cluster \"lab\" { }\n// caf\xe9\n");
    assert_eq!(
        (latin.diagnostics[0].id, latin.diagnostics[0].line, latin.diagnostics[0].column),
        ("FLK102", Some(2), Some(7))
    );
    let nul = load_bytes(b"cluster \"lab\" { }\n\0");
    assert_eq!((nul.diagnostics[0].id, nul.diagnostics[0].line), ("FLK103", Some(2)));
    let large = load_bytes(&vec![b' '; 4 * 1024 * 1024 + 1]);
    assert_eq!(large.diagnostics[0].id, "FLK100");
    assert_eq!(load_bytes(b"").diagnostics[0].id, "FLK107");
    let nothing = load(&Tree::new());
    assert_eq!((nothing.diagnostics[0].id, nothing.diagnostics[0].file.as_deref()), ("FLK107", None));
}

#[test]
fn all_faults_of_all_files_come_at_once_and_in_order() {
    let loaded = load(&text_tree(&[
        ("cluster.kdl", "cluster \"lab\" {\n  reserve vram=1\n  reserv\n}\nnode \"a\""),
        ("policies/p.kdl", "prune \"x\"\nnode \"b"),
        ("workflows/w.kdl", "workflow \"w\" { step \"s\" agent=\"z\" { prompt \"x\" } }"),
    ]));
    let place =
        |found: &crate::base::Diagnostic| (found.file.clone().unwrap_or_default(), found.line.unwrap_or(0), found.id);
    let found: Vec<_> = loaded.diagnostics.iter().map(place).collect();
    let wanted = [
        ("cluster.kdl", 2, "FLK118"),
        ("cluster.kdl", 3, "FLK110"),
        ("cluster.kdl", 5, "FLK114"),
        ("policies/p.kdl", 1, "FLK120"),
        ("policies/p.kdl", 2, "FLK104"),
        ("workflows/w.kdl", 1, "FLK131"),
    ];
    assert_eq!(found, wanted.map(|(file, line, id)| (file.to_owned(), line, id)));
}

#[test]
fn a_broken_step_is_reported_once() {
    let loaded = load(&text_tree(&[
        ("cluster.kdl", "cluster \"lab\" { }\nmodel \"m\" { source \"hf:a/b\" }\nagent \"a\" model=\"m\""),
        (
            "workflows/w.kdl",
            "workflow \"w\" {\n step \"s\" agent=\"a\" { prompt file=\"x.md\" }\n step \"t\" agent=\"a\" after=\"s\" { prompt \"{{ steps.s.text }}\" }\n}",
        ),
    ]));
    assert_eq!(
        loaded.diagnostics.iter().map(|found| (found.id, found.line)).collect::<Vec<_>>(),
        [("FLK136", Some(2))]
    );
}

#[test]
fn a_step_inside_a_repeat_may_read_the_round_before() {
    let loaded = load(&text_tree(&[
        ("cluster.kdl", "cluster \"lab\" { }\nmodel \"m\" { source \"hf:a/b\" }\nagent \"a\" model=\"m\""),
        (
            "workflows/w.kdl",
            "workflow \"w\" {\n step \"code\" agent=\"a\" { prompt \"{{ steps.review.text }}\" }\n step \"review\" agent=\"a\" after=\"code\" { prompt \"{{ steps.code.text }}\"; repeat \"code\" until=\"{{ steps.review.text }}\" at-most=3 }\n}",
        ),
    ]));
    assert!(loaded.desired.is_some(), "{:#?}", errors(&loaded));
}

#[test]
fn faults_about_two_places_show_both() {
    let loaded = load(&text_tree(&[
        ("cluster.kdl", "cluster \"lab\" { }\nmodel \"m\" { source \"hf:a/b\" }\nagent \"viewer\" model=\"m\""),
        ("policies/p.kdl", "model \"m\" { source \"hf:a/b\" }"),
        ("workflows/w.kdl", "workflow \"w\" { step \"s\" agent=\"viewr\" { prompt \"x\" } }"),
    ]));
    let related: Vec<_> = loaded
        .diagnostics
        .iter()
        .map(|found| (found.id, found.related[0].file.as_str(), found.related[0].line))
        .collect();
    assert_eq!(related, [("FLK130", "cluster.kdl", 2), ("FLK131", "cluster.kdl", 3)]);
}
