//! Every identifier this room gives to a finding, with its explanation. FLK100 to FLK199 are config's.

/// An identifier with what `flock help diagnostics` says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagnosticId {
    /// `FLKnnn`; never reused for another meaning.
    pub id: &'static str,
    /// A short title.
    pub title: &'static str,
    /// One paragraph: what it means and what to do.
    pub explanation: &'static str,
}

macro_rules! ids {
    ($($name:ident = $id:literal, $title:literal, $explanation:literal;)+) => {
        $(#[doc = $title] pub const $name: &str = $id;)+

        /// The table of all identifiers of this room, in order.
        pub const CONFIG_DIAGNOSTICS: &[DiagnosticId] = &[
            $(DiagnosticId { id: $id, title: $title, explanation: $explanation },)+
        ];
    };
}

ids! {
    TOO_LARGE = "FLK100", "file too large",
        "A config file may have 4 MiB at most. Split it into several files and name them with `include`.";
    TOO_DEEP = "FLK101", "blocks nested too deep",
        "Blocks may be nested 64 deep at most. No declaration needs that; look for a generated or damaged file.";
    ENCODING = "FLK102", "file is not UTF-8",
        "Config files are UTF-8, with or without a byte-order mark. Save the file in that encoding.";
    SYNTAX = "FLK103", "syntax error",
        "The text is not KDL 2. The hint says what to write instead.";
    UNCLOSED = "FLK104", "brace, string or comment never closed",
        "Something that was opened does not end before the file does. The place is the opening one; for braces, indentation helps to guess which one is meant.";
    KDL1 = "FLK105", "KDL 1 habit",
        "KDL 2 writes `#true`, `#false` and `#null` with a `#`, and raw strings as #\"…\"#.";
    UNREADABLE = "FLK106", "file cannot be read",
        "A config file exists and cannot be read, is larger than a config file may be, or is a link that leaves the repository.";
    NO_CLUSTER = "FLK107", "no cluster block",
        "Exactly one `cluster \"name\" { … }` block must be declared, usually in cluster.kdl at the root of the repository.";

    UNKNOWN_NODE = "FLK110", "unknown word",
        "This word is not known at this place. Nothing is ignored: a misspelt setting must not pass silently. The hint names the nearest known word.";
    UNKNOWN_PROPERTY = "FLK111", "unknown property",
        "The node has no property of this name. The hint names the nearest one, or says that it is a child on a line of its own.";
    EXTRA_ARGUMENT = "FLK112", "too many arguments",
        "The node takes fewer arguments. Everything up to the end of the line, or to `;`, belongs to one node: `{ address \"10.0.0.1\" user \"x\" }` is one node with three arguments.";
    MISSING_ARGUMENT = "FLK113", "missing argument",
        "The node needs an argument that is not there.";
    MISSING_PROPERTY = "FLK114", "missing property or child",
        "The node needs a property or a child that is not there.";
    DUPLICATE_PROPERTY = "FLK115", "property given twice",
        "A property may be given once; which of two values was meant cannot be known.";
    DUPLICATE_CHILD = "FLK116", "word given twice",
        "This word may be given once in its block (or once in all files); which of two was meant cannot be known.";
    WRONG_TYPE = "FLK117", "value of the wrong type",
        "The value is not of the kind that is expected here, such as a text where a number is expected.";
    MISSING_UNIT = "FLK118", "missing or unknown unit",
        "Bytes, times, rates, shares and prices carry their unit: \"24GiB\", \"5ms\", \"72h\", \"10MB/s\", \"25%\", \"1.20/h\".";
    OUT_OF_RANGE = "FLK119", "value out of range",
        "The value is of the right kind and too small or too large, or two values contradict each other.";
    UNKNOWN_VALUE = "FLK120", "unknown value",
        "The value is not one of the words that are known here.";
    ANNOTATION = "FLK121", "type annotation",
        "KDL allows `(type)value`; it has no meaning in this language, and nothing is ignored.";
    NO_BLOCK = "FLK122", "block not expected",
        "This node has no children.";
    BAD_NAME = "FLK123", "name not allowed",
        "Names reach paths, identifiers and command lines. They hold letters, digits, `.`, `_`, `+` and `-`, begin with a letter or digit, and have at most 64 characters.";
    LITERAL_SECRET = "FLK124", "literal secret",
        "Something that looks like a key is written in the config. Secrets are only ever references (`env=\"NAME\"`, `file=\"…\"`). Replace the key at its issuer: it is in the history of the repository.";
    BAD_RANGE = "FLK125", "node range not valid",
        "A range is `node \"ada-[01-08]\" address=\"ada-{}.example.org\"`: one pair of brackets in the name, and `{}` in the address for the number.";
    CONTRADICTION = "FLK126", "words that exclude each other",
        "Two words of a block cannot hold at once, or one does not apply to this kind of thing.";

    DUPLICATE_NAME = "FLK130", "name declared twice",
        "Names live in one namespace per kind across all files.";
    UNKNOWN_NAME = "FLK131", "name not declared",
        "Something is named that no file declares.";
    UNKNOWN_PRIORITY = "FLK132", "priority not declared",
        "A priority must be declared with `priority \"name\" rank=…` in a file under policies/.";
    OWNED_ARGUMENT = "FLK133", "argument that no config may set",
        "flock derives this engine flag from the config and the plan; a second value would contradict what was planned.";
    BAD_SOURCE = "FLK134", "source not valid",
        "Weights come from `hf:owner/name[@revision][#file]`, `path:…`, `on-node:/…` or `https://…` with `sha256=`.";
    PATH_LEAVES = "FLK135", "path leaves the repository",
        "Paths are relative to the file that names them and stay inside the repository. Some keys also take `/…` or `~/…`.";
    MISSING_FILE = "FLK136", "file does not exist",
        "A file that the config names is not there.";
    NO_MATCH = "FLK137", "include matches nothing",
        "An `include` names no existing file.";

    UNKNOWN_STEP = "FLK140", "step not declared",
        "A workflow step names a step that the workflow does not have, or one that does not come before it.";
    CYCLE = "FLK141", "cycle",
        "Steps wait for each other, or workflows call each other, so that none can begin. `repeat` of an earlier step is no cycle.";
    UNREACHABLE = "FLK142", "step can never run",
        "The step waits for steps that can never finish.";
    BAD_TEMPLATE = "FLK143", "template not valid",
        "`{{ … }}` holds one of `input.NAME`, `steps.NAME.text`, `steps.NAME.texts`, `steps.NAME.json`, `steps.NAME.jsons` and, in a step with `for-each`, `item`; `json`, `jsons`, `item` and inputs of type json may be followed by fields.";
    UNKNOWN_VARIABLE = "FLK144", "unknown template variable",
        "A template names an input, step or field that does not exist, or a step that has not run by then.";
    NOT_A_LIST = "FLK145", "for-each over something that is no list",
        "`for-each` needs a list: an input of type list, `steps.NAME.texts`, `steps.NAME.jsons`, or a field of JSON.";
    TOO_LONG = "FLK146", "longer than the workflow is kept",
        "A step may not wait or run longer than `keep`: its session would be gone before it ends.";
    NO_STEPS = "FLK147", "workflow or step that does nothing",
        "A workflow needs at least one step, and a step needs something to do: an agent, a workflow, an approval or a wait.";
    BAD_SCHEMA = "FLK148", "schema not valid",
        "The file that `output schema=` names is no JSON schema.";

    BAD_CONDITION = "FLK150", "condition not valid",
        "A condition compares fields of the model and the node: `model.gated && node.labels.tier == 'cloud'`. It has `&&`, `||`, `!`, parentheses, `==`, `!=` and `in ('a', 'b')`; texts stand in single quotes. The fields are model.name, model.owner, model.priority, model.engine, model.gated, model.labels.NAME, node.name, node.owner, node.site, node.spot and node.labels.NAME.";
    BAD_ZONE = "FLK151", "time zone not known",
        "A time zone is a name of the IANA database, such as \"Europe/Zurich\" or \"UTC\". Abbreviations such as CEST and offsets such as +02:00 do not say when daylight saving begins.";
    NO_CHANGE = "FLK152", "nothing is changed",
        "A file for `flock plan --what-if` says what would be otherwise: `add node \"x\" like=\"ada-1\"`, `drop node \"a100\"`, `add model \"judge\" { … }` as in cluster.kdl. This one says nothing.";

    NO_EFFECT = "FLK187", "word that none of the engines acts on",
        "`part`, `allow offload=#true` and `allow cpu=#true` act with llama.cpp only, and the model names other engines alone. Name llama.cpp, too, or leave the word out.";
    LABEL_NOWHERE = "FLK188", "label or name that nothing has",
        "`place` asks for a label, or a value of it, that no node of the config has: a `require` then leaves the model without a place, `prefer` and `spread` have no effect. Or a `deny` or `quota` compares with a name, a label or a value that no model or node of the config has: that comparison is never true.";
    SAME_MACHINE = "FLK189", "two nodes are one machine",
        "Two nodes have the same address, port and jump host. Their accelerators would be counted twice.";
    NOT_ENFORCED = "FLK190", "accepted and not yet enforced",
        "The word is valid and this version does not act on it yet.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_ordered_and_in_the_range_of_this_room() {
        for pair in CONFIG_DIAGNOSTICS.windows(2) {
            assert!(pair[0].id < pair[1].id, "{} before {}", pair[0].id, pair[1].id);
        }
        assert!(CONFIG_DIAGNOSTICS.iter().all(|row| ("FLK100".."FLK200").contains(&row.id)));
        assert!(CONFIG_DIAGNOSTICS.iter().all(|row| row.explanation.ends_with('.')));
    }
}
