//! The schema as data: the decoders' own tables, with what they say about every word.

use serde::Serialize;

use super::schema::{Argument, Count, NodeSpec, Property, Type, top_level};
use super::syntax::{MAX_DEPTH, MAX_FILE_BYTES};
use crate::base::{Dtype, EngineKind, Quality};

/// The language: every word, and the values with an order of their own.
#[derive(Debug, Serialize)]
pub struct Schema {
    /// 1.
    pub format: u32,
    /// Version of flock.
    pub version: &'static str,
    /// Largest file that is read.
    pub max_file_bytes: u64,
    /// Deepest nesting of blocks.
    pub max_depth: usize,
    /// What may stand at the top of a file.
    pub nodes: Vec<SchemaNode>,
    /// Quality names, best first; those of one row are equal. `*` stands for any ending.
    pub qualities: &'static [&'static [&'static str]],
}

/// A node.
#[derive(Debug, Serialize)]
pub struct SchemaNode {
    /// Its word.
    pub word: &'static str,
    /// What it says.
    pub about: &'static str,
    /// Whether it may be there several times in its block.
    pub repeatable: bool,
    /// Whether its block must have it.
    pub required: bool,
    /// What holds without it, as one would write it or in words.
    pub default: Option<&'static str>,
    /// Whether this version acts on it.
    pub acts: bool,
    /// Its arguments, in order.
    pub arguments: Vec<SchemaArgument>,
    /// Its properties.
    pub properties: Vec<SchemaProperty>,
    /// What its block may hold.
    pub children: Vec<SchemaNode>,
}

/// An argument.
#[derive(Debug, Serialize)]
pub struct SchemaArgument {
    /// What it is called in messages.
    pub name: &'static str,
    /// `one`, `optional`, or `many`: one or more.
    pub count: &'static str,
    /// What it must be.
    #[serde(flatten)]
    pub ty: SchemaType,
}

/// A property.
#[derive(Debug, Serialize)]
pub struct SchemaProperty {
    /// Its key.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// What holds without it, as one would write it or in words.
    pub default: Option<&'static str>,
    /// Whether this version acts on it.
    pub acts: bool,
    /// What its value must be.
    #[serde(flatten)]
    pub ty: SchemaType,
}

/// The type of a value.
#[derive(Debug, Serialize)]
pub struct SchemaType {
    /// The type's name.
    #[serde(rename = "type")]
    pub name: &'static str,
    /// What to write.
    pub write: String,
    /// The only words, or the words that may be joined by commas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<&'static str>,
    /// Smallest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest number, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// The schema of this version.
pub fn schema() -> Schema {
    Schema {
        format: 1,
        version: env!("CARGO_PKG_VERSION"),
        max_file_bytes: MAX_FILE_BYTES,
        max_depth: MAX_DEPTH,
        nodes: top_level().iter().map(|spec| node(spec)).collect(),
        qualities: Quality::table(),
    }
}

fn node(spec: &NodeSpec) -> SchemaNode {
    SchemaNode {
        word: spec.word,
        about: spec.about,
        repeatable: spec.repeatable,
        required: spec.required,
        default: spec.default,
        acts: spec.acts,
        arguments: spec.arguments.iter().map(argument).collect(),
        properties: spec.properties.iter().map(property).collect(),
        children: spec.children.iter().map(|child| node(child)).collect(),
    }
}

fn argument(argument: &Argument) -> SchemaArgument {
    let count = match argument.count {
        Count::One => "one",
        Count::Optional => "optional",
        Count::Many => "many",
    };
    SchemaArgument { name: argument.name, count, ty: ty(argument.ty) }
}

fn property(property: &Property) -> SchemaProperty {
    SchemaProperty {
        name: property.name,
        about: property.about,
        required: property.required,
        default: property.default,
        acts: property.acts,
        ty: ty(property.ty),
    }
}

fn ty(ty: Type) -> SchemaType {
    let words = match ty {
        Type::Word(words) | Type::Words(words) => words.to_vec(),
        Type::Engine => EngineKind::ALL.iter().map(|engine| engine.word()).collect(),
        Type::KvDtype => Dtype::ALL.iter().map(|dtype| dtype.word()).collect(),
        Type::Bool => vec!["#true", "#false"],
        _ => Vec::new(),
    };
    let (min, max) = match ty {
        Type::Whole(min, max) => (Some(min as f64), (max < u64::from(u32::MAX)).then_some(max as f64)),
        Type::Number(min, max) => (Some(min), Some(max)),
        _ => (None, None),
    };
    SchemaType { name: name(ty), write: ty.describe(), words, min, max }
}

fn name(ty: Type) -> &'static str {
    match ty {
        Type::Text => "text",
        Type::Name => "name",
        Type::NameOrRange => "name-or-range",
        Type::Whole(..) => "whole",
        Type::Number(..) => "number",
        Type::Bool => "bool",
        Type::Bytes | Type::SomeBytes => "bytes",
        Type::ByteRate => "byte-rate",
        Type::Duration | Type::DurationOrZero => "duration",
        Type::Percent => "percent",
        Type::Money => "money",
        Type::HourlyPrice => "hourly-price",
        Type::TokenPrice => "token-price",
        Type::RequestRate => "request-rate",
        Type::Date => "date",
        Type::TimeOfDay => "time-of-day",
        Type::Days => "days",
        Type::Word(_) => "word",
        Type::Words(_) => "words",
        Type::List => "list",
        Type::EnvName => "environment-variable",
        Type::Listen => "listen",
        Type::Ports => "ports",
        Type::Host => "host",
        Type::Url => "url",
        Type::Sha256 => "sha256",
        Type::Scalar => "text-or-whole",
        Type::Path => "path",
        Type::Template => "template",
        Type::Engine => "engine",
        Type::KvDtype => "kv-dtype",
        Type::Quality => "quality",
        Type::Source => "source",
        Type::Zone => "time-zone",
        Type::Condition => "condition",
    }
}
