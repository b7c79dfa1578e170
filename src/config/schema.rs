//! The tables that say what may be written where. The checker, the schema command and completions read them.

use super::values::Wrong;
use super::{names, source, values};
use crate::base::{Dtype, EngineKind, Quality};

use super::syntax::Value;

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Type {
    /// Any text that is not empty.
    Text,
    /// A name: letters, digits, `.`, `_`, `+`, `-`.
    Name,
    /// The name of a node, or a range such as `ada-[01-08]`.
    NameOrRange,
    /// A whole number between two bounds, inclusive.
    Whole(u64, u64),
    /// A number between two bounds, inclusive.
    Number(f64, f64),
    /// `#true` or `#false`.
    Bool,
    /// `"24GiB"`, `"0B"`.
    Bytes,
    /// `"24GiB"`, above zero.
    SomeBytes,
    /// `"10MB/s"`, above zero.
    ByteRate,
    /// `"5ms"`, `"72h"`, above zero.
    Duration,
    /// `"5ms"`, `"0s"`.
    DurationOrZero,
    /// `"25%"`.
    Percent,
    /// `"5.00"`, in the currency of the cluster.
    Money,
    /// `"1.20/h"`.
    HourlyPrice,
    /// `"3.00/Mtok"`.
    TokenPrice,
    /// `"60/m"`.
    RequestRate,
    /// `"2027-01-31"`.
    Date,
    /// `"09:00"`.
    TimeOfDay,
    /// `"mon-fri"`, `"mon,wed"`.
    Days,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Some of these words, separated by commas.
    Words(&'static [&'static str]),
    /// Texts separated by commas.
    List,
    /// The name of an environment variable.
    EnvName,
    /// `"127.0.0.1:8080"`.
    Listen,
    /// `"20000-20999"`.
    Ports,
    /// A host name or address.
    Host,
    /// `"https://…"`.
    Url,
    /// 64 hexadecimal digits.
    Sha256,
    /// A text or a whole number, passed on as written.
    Scalar,
    /// A path; where it may lead is said by its decoder.
    Path,
    /// A text with `{{ … }}`.
    Template,
    /// An engine.
    Engine,
    /// The element type of a KV cache.
    KvDtype,
    /// A name of the quality table.
    Quality,
    /// Where weights come from.
    Source,
    /// A name of the time zone database.
    Zone,
    /// A condition about a model and a node; its decoder says what is wrong with it, and where.
    Condition,
}

impl Type {
    /// What to write, for messages and the schema.
    pub fn describe(self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Name => "a name".into(),
            Self::NameOrRange => "a name, or a range such as \"ada-[01-08]\"".into(),
            Self::Whole(min, max) if max >= u64::from(u32::MAX) => format!("a whole number of at least {min}"),
            Self::Whole(min, max) => format!("a whole number from {min} to {max}"),
            Self::Number(min, max) => format!("a number from {min} to {max}"),
            Self::Bool => "#true or #false".into(),
            Self::Bytes | Self::SomeBytes => "bytes with their unit, such as \"24GiB\"".into(),
            Self::ByteRate => "bytes per second, such as \"10MB/s\"".into(),
            Self::Duration | Self::DurationOrZero => "a time with its unit, such as \"5s\"".into(),
            Self::Percent => "a share, such as \"25%\"".into(),
            Self::Money => "an amount, such as \"5.00\"".into(),
            Self::HourlyPrice => "a price per hour, such as \"1.20/h\"".into(),
            Self::TokenPrice => "a price per million tokens, such as \"3.00/Mtok\"".into(),
            Self::RequestRate => "requests per time, such as \"60/m\"".into(),
            Self::Date => "a date, such as \"2027-01-31\"".into(),
            Self::TimeOfDay => "a time of day, such as \"09:00\"".into(),
            Self::Days => "days, such as \"mon-fri\" or \"sat,sun\"".into(),
            Self::Word(words) => format!("one of {}", names::list(words)),
            Self::Words(words) => format!("some of {}, separated by commas", names::list(words)),
            Self::List => "texts separated by commas".into(),
            Self::EnvName => "the name of an environment variable".into(),
            Self::Listen => "an address and port, such as \"127.0.0.1:8080\"".into(),
            Self::Ports => "a range of ports, such as \"20000-20999\"".into(),
            Self::Host => "a host name or address".into(),
            Self::Url => "an address, such as \"https://example.org\"".into(),
            Self::Sha256 => "a SHA-256 of 64 hexadecimal digits".into(),
            Self::Scalar => "a text or a whole number".into(),
            Self::Path => "a path".into(),
            Self::Template => "a text, with {{ … }} for values".into(),
            Self::Engine => {
                format!("one of {}", names::list(&EngineKind::ALL.iter().map(|e| e.word()).collect::<Vec<_>>()))
            }
            Self::KvDtype => {
                format!("one of {}", names::list(&Dtype::ALL.iter().map(|d| d.word()).collect::<Vec<_>>()))
            }
            Self::Quality => "a quality, such as \"int8\" or \"Q4_K_M\"".into(),
            Self::Source => "a source, such as \"hf:owner/name\"".into(),
            Self::Zone => "a time zone, such as \"Europe/Zurich\" or \"UTC\"".into(),
            Self::Condition => "a condition, such as \"model.gated && node.labels.tier == 'cloud'\"".into(),
        }
    }

    /// Whether a value is of this type.
    pub(super) fn check(self, value: &Value) -> Result<(), Wrong> {
        match self {
            Self::Text | Self::Path | Self::Template | Self::Condition => values::text(value).map(drop),
            Self::Name => values::name(value).map(drop),
            Self::NameOrRange => match value {
                Value::Text { text, .. } => super::node::range(text).map(drop),
                other => values::name(other).map(drop),
            },
            Self::Whole(min, max) => values::whole(value, min, max).map(drop),
            Self::Number(min, max) => values::number(value, min, max).map(drop),
            Self::Bool => values::boolean(value).map(drop),
            Self::Bytes => values::bytes(value).map(drop),
            Self::SomeBytes => values::bytes(value).and_then(|amount| values::some(amount.0 > 0, value, "1MiB")),
            Self::ByteRate => values::byte_rate(value).map(drop),
            Self::Duration => values::duration(value).and_then(|time| values::some(!time.is_zero(), value, "5s")),
            Self::DurationOrZero => values::duration(value).map(drop),
            Self::Percent => values::percent(value).map(drop),
            Self::Money => values::money(value).map(drop),
            Self::HourlyPrice => values::hourly_price(value).map(drop),
            Self::TokenPrice => values::token_price(value).map(drop),
            Self::RequestRate => values::request_rate(value).map(drop),
            Self::Date => values::date(value).map(drop),
            Self::TimeOfDay => values::time_of_day(value).map(drop),
            Self::Days => values::days(value).map(drop),
            Self::Word(words) => values::word(value, words).map(drop),
            Self::Words(words) => values::words(value, words).map(drop),
            Self::List => values::list(value).map(drop),
            Self::EnvName => values::env_name(value).map(drop),
            Self::Listen => values::listen(value).map(drop),
            Self::Ports => values::ports(value).map(drop),
            Self::Host => values::host(value).map(drop),
            Self::Url => values::url(value).map(drop),
            Self::Sha256 => values::sha256(value).map(drop),
            Self::Scalar => values::scalar(value).map(drop),
            Self::Engine => values::parsed::<EngineKind>(value).map(drop),
            Self::KvDtype => values::parsed::<Dtype>(value).map(drop),
            Self::Quality => values::parsed::<Quality>(value).map(drop),
            Self::Source => values::text(value).and_then(|text| source::parse(&text)).map(drop),
            Self::Zone => values::zone(value).map(drop),
        }
    }
}

/// How many values an argument position takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// One or more, to the end of the node.
    Many,
}

/// An argument of a node.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// What it is called in messages.
    pub name: &'static str,
    /// What it must be.
    pub ty: Type,
    /// How many there are.
    pub count: Count,
}

/// A property of a node.
#[derive(Debug, Clone, Copy)]
pub struct Property {
    /// Its key.
    pub name: &'static str,
    /// What its value must be.
    pub ty: Type,
    /// One line for the schema and completions.
    pub about: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// What holds without it, as one would write it or in words.
    pub default: Option<&'static str>,
    /// Whether this version acts on it.
    pub acts: bool,
}

/// A node: its word and everything that may belong to it.
#[derive(Debug, Clone, Copy)]
pub struct NodeSpec {
    /// Its word.
    pub word: &'static str,
    /// One line for the schema and completions.
    pub about: &'static str,
    /// Arguments in order.
    pub arguments: &'static [Argument],
    /// Properties.
    pub properties: &'static [Property],
    /// Children.
    pub children: &'static [&'static NodeSpec],
    /// Whether it may be there several times in its block.
    pub repeatable: bool,
    /// Whether its block must have it.
    pub required: bool,
    /// What holds without it, as one would write it or in words.
    pub default: Option<&'static str>,
    /// Whether this version acts on it.
    pub acts: bool,
}

impl NodeSpec {
    /// A node without arguments, properties and children, once in its block.
    pub(super) const fn new(word: &'static str, about: &'static str) -> Self {
        Self {
            word,
            about,
            arguments: &[],
            properties: &[],
            children: &[],
            repeatable: false,
            required: false,
            default: None,
            acts: true,
        }
    }

    pub(super) const fn args(self, arguments: &'static [Argument]) -> Self {
        Self { arguments, ..self }
    }

    pub(super) const fn props(self, properties: &'static [Property]) -> Self {
        Self { properties, ..self }
    }

    pub(super) const fn children(self, children: &'static [&'static NodeSpec]) -> Self {
        Self { children, ..self }
    }

    pub(super) const fn many(self) -> Self {
        Self { repeatable: true, ..self }
    }

    /// Its block must have it; its decoder says so where it is missing.
    pub(super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// What holds without it.
    pub(super) const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// Accepted, and acting with a later version.
    pub(super) const fn later(self) -> Self {
        Self { acts: false, ..self }
    }
}

impl Property {
    /// What holds without it.
    pub(super) const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    pub(super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

pub(super) const fn prop(name: &'static str, ty: Type, about: &'static str) -> Property {
    Property { name, ty, about, required: false, default: None, acts: true }
}

pub(super) const fn arg(name: &'static str, ty: Type) -> Argument {
    Argument { name, ty, count: Count::One }
}

pub(super) const fn optional(name: &'static str, ty: Type) -> Argument {
    Argument { name, ty, count: Count::Optional }
}

pub(super) const fn rest(name: &'static str, ty: Type) -> Argument {
    Argument { name, ty, count: Count::Many }
}

/// `include "glob"`.
pub(super) static INCLUDE: NodeSpec =
    NodeSpec::new("include", "reads further files, relative to this one").args(&[rest("path", Type::Path)]).many();

/// Everything that may stand at the top of a file.
pub fn top_level() -> &'static [&'static NodeSpec] {
    static TOP: &[&NodeSpec] = &[
        &super::cluster::CLUSTER,
        &super::node::NODE,
        &super::engine::ENGINE,
        &super::provider::PROVIDER,
        &super::model_words::MODEL,
        &super::agent::AGENT,
        &super::tool::TOOL,
        &super::workflow::WORKFLOW,
        &super::policy::PRIORITY,
        &super::policy::QUOTA,
        &super::policy::DENY,
        &super::policy::PROTECT,
        &super::policy::WINDOW,
        &super::policy::LIMIT,
        &super::policy::APPROVAL,
        &super::policy::PRUNE,
        &super::policy::ON_NODE_LOST,
        &super::policy::SPOT,
        &super::policy::THRESHOLD,
        &super::policy::ON_PENDING,
        &super::policy::ON_DRIFT,
        &super::policy::ON_DECAY,
        &INCLUDE,
    ];
    TOP
}
