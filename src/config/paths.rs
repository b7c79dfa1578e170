//! Paths inside the repository. Only text: nothing is looked up.

/// Normalises a path relative to the root; `None` if it leaves it.
pub(super) fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A path written in `file`, relative to the root; `None` if it leaves the repository.
pub(super) fn relative_to_file(file: &str, path: &str) -> Option<String> {
    match file.rsplit_once('/') {
        Some((folder, _)) => normal(&format!("{folder}/{path}")),
        None => normal(path),
    }
}

/// How `file` writes a path that is given relative to the root.
pub(super) fn climb(file: &str, path: &str) -> String {
    format!("{}{path}", "../".repeat(file.matches('/').count()))
}

pub(super) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(relative_to_file("workflows/a.kdl", "../schemas/x.json").as_deref(), Some("schemas/x.json"));
        assert_eq!(relative_to_file("cluster.kdl", "../x"), None);
        assert_eq!(relative_to_file("a/b.kdl", "../../x"), None);
        assert_eq!(relative_to_file("cluster.kdl", "./a//b/../c").as_deref(), Some("a/c"));
        assert_eq!(climb("workflows/a.kdl", "schemas/x"), "../schemas/x");
    }
}
