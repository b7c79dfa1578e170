//! The `%` tokens and `${NAME}` of an ssh config file's words. Pure.

/// Replaces `%` tokens and `${NAME}`; the error names what is unknown.
pub(super) fn expand(
    text: &str,
    token: &dyn Fn(char) -> Option<String>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['%', '$']) {
        out.push_str(&rest[..at]);
        let found = &rest[at..];
        if let Some(name) = found.strip_prefix("${") {
            let (name, after) = name.split_once('}').ok_or_else(|| format!("`${{` without `}}` in `{text}`"))?;
            out.push_str(&environment(name).ok_or_else(|| format!("the variable {name} of `{text}` is not set"))?);
            rest = after;
        } else if let Some(after) = found.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else {
            let mut chars = found[1..].chars();
            let letter = chars.next().ok_or_else(|| format!("`%` at the end of `{text}`"))?;
            if letter == '%' {
                out.push('%');
            } else {
                out.push_str(&token(letter).ok_or_else(|| format!("`%{letter}` in `{text}` is not read"))?);
            }
            rest = chars.as_str();
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_variables_are_replaced() {
        let token = |letter| (letter == 'h').then(|| "ada".to_owned());
        let variable = |name: &str| (name == "KEYS").then(|| "/keys".to_owned());
        let expand = |text| expand(text, &token, &variable);
        assert_eq!(expand("${KEYS}/id_%h_%%_$x").expect("fine"), "/keys/id_ada_%_$x");
        for bad in ["%C", "%", "${NONE}", "${KEYS"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
