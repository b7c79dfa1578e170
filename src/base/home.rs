//! The home folder in paths.

/// A path with a leading `~` or `~/` replaced. `~NAME/` and, where no home is known, all paths stay as they are.
pub fn expand_home(path: &str, home: Option<&str>) -> String {
    let rest = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (rest, home) {
        (Some(rest), Some(home)) => {
            let home = home.trim_end_matches('/');
            let rest = rest.trim_start_matches('/');
            match (home, rest) {
                ("", rest) => format!("/{rest}"),
                (home, "") => home.to_owned(),
                (home, rest) => format!("{home}/{rest}"),
            }
        }
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leading_home_is_replaced() {
        for (path, home, expected) in [
            ("~", Some("/home/u"), "/home/u"),
            ("~/", Some("/home/u"), "/home/u"),
            ("~/a/b", Some("/home/u/"), "/home/u/a/b"),
            ("~//a", Some("/home/u"), "/home/u/a"),
            ("~/a", Some("/"), "/a"),
            ("~", Some("/"), "/"),
            ("~/a", None, "~/a"),
            ("~other/a", Some("/home/u"), "~other/a"),
            ("/x/~/a", Some("/home/u"), "/x/~/a"),
            ("a", Some("/home/u"), "a"),
            ("", Some("/home/u"), ""),
        ] {
            assert_eq!(expand_home(path, home), expected, "{path} {home:?}");
        }
    }
}
