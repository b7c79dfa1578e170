//! SARIF 2.1.0 (OASIS), as GitHub's code scanning reads it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::rules::{by_weight, hosted, known_diagnostics};
use crate::base::{Diagnostic, Digest, Severity};

/// Results in one document. GitHub shows this many of a run.
pub const MAX_RESULTS: usize = 5000;

/// The findings as a SARIF document, errors first. `prefix` is the folder of the config repository in the checkout.
///
/// Rule ids are the identifiers of `flock help diagnostics`. A fingerprint depends on the identifier, the file and the
/// message, not on the line, so that a finding stays the same when lines are added above it.
pub fn sarif(diagnostics: &[Diagnostic], prefix: &str) -> String {
    let known = known_diagnostics();
    let rules: Vec<Value> = known
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": { "text": rule.title },
                "fullDescription": { "text": rule.explanation },
                "help": { "text": rule.explanation },
            })
        })
        .collect();
    let all = by_weight(diagnostics);
    let left_out = all.len().saturating_sub(MAX_RESULTS);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let results: Vec<Value> = all
        .iter()
        .take(MAX_RESULTS)
        .map(|one| {
            let index = known.iter().position(|rule| rule.id == one.id);
            result(one, index, prefix, &mut seen)
        })
        .collect();
    let mut invocation = json!({ "executionSuccessful": true });
    if left_out > 0 {
        let text = format!("{left_out} more findings were left out; `flock validate` lists them all");
        invocation["toolExecutionNotifications"] = json!([{ "level": "warning", "message": { "text": text } }]);
    }
    crate::report::json(&json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "flock", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "invocations": [invocation],
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }))
}

fn result(one: &Diagnostic, rule: Option<usize>, prefix: &str, seen: &mut BTreeMap<String, usize>) -> Value {
    // A finding without a file is about the repository: a result needs a place.
    let file = one.file.as_deref().unwrap_or(crate::config::CLUSTER_FILE);
    let (line, column) = (one.line.unwrap_or(1), one.column.unwrap_or(1));
    let mut region = json!({ "startLine": line, "startColumn": column });
    if let (Some(end_line), Some(end_column)) = (one.end_line, one.end_column) {
        region["endLine"] = end_line.into();
        region["endColumn"] = end_column.into();
    }
    let text = match &one.hint {
        Some(hint) => format!("{}\n\nhint: {hint}", one.message),
        None => one.message.clone(),
    };
    let digest = Digest::of_json(&(one.id, file, &one.message)).short(16).to_owned();
    let times = seen.entry(digest.clone()).or_default();
    *times += 1;
    let mut out = json!({
        "ruleId": one.id,
        "level": match one.severity { Severity::Error => "error", Severity::Warning => "warning" },
        "message": { "text": text },
        "locations": [{ "physicalLocation": { "artifactLocation": artifact(prefix, file), "region": region } }],
        "partialFingerprints": { "primaryLocationLineHash": format!("{digest}:{times}") },
    });
    if let Some(rule) = rule {
        out["ruleIndex"] = rule.into();
    }
    if !one.related.is_empty() {
        let related = one.related.iter().enumerate().map(|(id, related)| {
            json!({
                "id": id + 1,
                "message": { "text": related.message },
                "physicalLocation": {
                    "artifactLocation": artifact(prefix, &related.file),
                    "region": { "startLine": related.line, "startColumn": related.column },
                },
            })
        });
        out["relatedLocations"] = Value::Array(related.collect());
    }
    out
}

fn artifact(prefix: &str, file: &str) -> Value {
    json!({ "uri": uri(&hosted(prefix, file)), "uriBaseId": "%SRCROOT%" })
}

/// A relative path as a URI reference (RFC 3986): all but unreserved characters and `/` is percent-encoded.
fn uri(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::at;

    /// What the SARIF 2.1.0 schema requires, and what GitHub requires beyond it.
    fn check(document: &Value) {
        assert_eq!(document["version"], "2.1.0");
        let allowed = ["$schema", "version", "runs", "inlineExternalProperties", "properties"];
        assert!(document.as_object().unwrap().keys().all(|key| allowed.contains(&key.as_str())), "{document}");
        for run in document["runs"].as_array().unwrap() {
            let driver = &run["tool"]["driver"];
            assert!(driver["name"].is_string());
            assert!(["utf16CodeUnits", "unicodeCodePoints"].contains(&run["columnKind"].as_str().unwrap()));
            let rules = driver["rules"].as_array().unwrap();
            for rule in rules {
                assert!(rule["id"].is_string() && rule["shortDescription"]["text"].is_string(), "{rule}");
            }
            for invocation in run["invocations"].as_array().unwrap() {
                assert!(invocation["executionSuccessful"].is_boolean());
            }
            let mut prints = std::collections::BTreeSet::new();
            for result in run["results"].as_array().unwrap() {
                assert!(result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
                assert!(["error", "warning", "note", "none"].contains(&result["level"].as_str().unwrap()));
                let index = result["ruleIndex"].as_u64().unwrap() as usize;
                assert_eq!(rules[index]["id"], result["ruleId"], "{result}");
                let print = result["partialFingerprints"]["primaryLocationLineHash"].as_str().unwrap();
                assert!(prints.insert(print.to_owned()), "{print} twice");
                let related = result["relatedLocations"].as_array().cloned().unwrap_or_default();
                assert_eq!(result["locations"].as_array().unwrap().len(), 1);
                for location in result["locations"].as_array().unwrap().iter().chain(&related) {
                    let physical = &location["physicalLocation"];
                    let uri = physical["artifactLocation"]["uri"].as_str().unwrap();
                    assert!(!uri.starts_with('/') && uri.is_ascii() && !uri.contains(' '), "{uri}");
                    let number = |name: &str| physical["region"][name].as_u64();
                    assert!(number("startLine") >= Some(1) && number("startColumn") >= Some(1), "{physical}");
                    assert!(number("endLine").is_none_or(|end| Some(end) >= number("startLine")), "{physical}");
                }
            }
        }
    }

    fn document(diagnostics: &[Diagnostic], prefix: &str) -> Value {
        let document = serde_json::from_str(&sarif(diagnostics, prefix)).unwrap();
        check(&document);
        document
    }

    #[test]
    fn what_the_schema_requires_is_there() {
        let found = [
            Diagnostic::warning("FLK190", &at("workflows/é x.kdl", 3), "w").hint("h"),
            Diagnostic::error("FLK130", &at("cluster.kdl", 7), "twice").related(&at("a.kdl", 1), "first"),
            Diagnostic::general("FLK107", Severity::Error, "there is no cluster.kdl"),
        ];
        let document = document(&found, "lab");
        let results = document["runs"][0]["results"].as_array().unwrap();
        let levels: Vec<&str> = results.iter().map(|result| result["level"].as_str().unwrap()).collect();
        assert_eq!(levels, ["error", "error", "warning"]);
        let place = &results[2]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "lab/workflows/%C3%A9%20x.kdl");
        assert_eq!(place["region"], json!({ "startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 20 }));
        assert_eq!(results[2]["message"]["text"], "w\n\nhint: h");
        check(&serde_json::from_str(&sarif(&[], "")).unwrap());
    }

    #[test]
    fn a_finding_keeps_its_fingerprint_when_lines_move_and_two_alike_are_two() {
        let print = |lines: &[usize]| {
            let found: Vec<_> =
                lines.iter().map(|line| Diagnostic::error("FLK110", &at("a.kdl", *line), "m")).collect();
            let document = document(&found, "");
            let results = document["runs"][0]["results"].as_array().unwrap().clone();
            results.iter().map(|one| one["partialFingerprints"].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(print(&[1, 5]), print(&[9, 70]));
        assert_ne!(print(&[1, 5])[0], print(&[1, 5])[1]);
    }

    #[test]
    fn no_more_than_github_shows_and_errors_stay() {
        let mut found: Vec<_> =
            (1..=MAX_RESULTS).map(|line| Diagnostic::warning("FLK190", &at("a.kdl", line), "w")).collect();
        found.push(Diagnostic::error("FLK110", &at("z.kdl", 1), "e"));
        let document = document(&found, "");
        let run = &document["runs"][0];
        assert_eq!(run["results"].as_array().unwrap().len(), MAX_RESULTS);
        assert_eq!(run["results"][0]["ruleId"], "FLK110");
        let said = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"].as_str().unwrap();
        assert!(said.starts_with("1 more findings"), "{said}");
    }
}
