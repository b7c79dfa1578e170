//! The config language for people: every word with its type, default and meaning.

use super::style::{Ink, Style, wrap};
use crate::config::{Schema, SchemaArgument, SchemaNode, SchemaProperty};

/// The language as text. `defaults` is named and not repeated: it holds the children of `model`.
pub fn schema_text(schema: &Schema, style: &Style) -> String {
    let mut out = String::from(
        "The words of a config repository, as this flock reads them. A word that is not here is an error.\n\
         <…> is an argument, key=… a property. * several times, ! must be there, ~ not yet acted on.\n",
    );
    for node in &schema.nodes {
        out.push('\n');
        write_node(node, 0, style, &mut out);
    }
    out.push_str("\nQualities, best first; those of one line are equal:\n");
    for row in schema.qualities {
        out.push_str(&format!("    {}\n", row.join("  ")));
    }
    out
}

fn write_node(node: &SchemaNode, level: usize, style: &Style, out: &mut String) {
    let indent = "    ".repeat(level);
    let mut head = node.word.to_owned();
    for SchemaArgument { name, count, .. } in &node.arguments {
        head.push_str(&match *count {
            "one" => format!(" <{name}>"),
            "many" => format!(" <{name}>…"),
            _ => format!(" [<{name}>]"),
        });
    }
    out.push_str(&format!(
        "{indent}{}{}",
        style.paint(Ink::Heading, &head),
        marks(node.required, node.repeatable, node.acts)
    ));
    let mut about = node.about.to_owned();
    for argument in &node.arguments {
        about.push_str(&format!("; <{}> is {}", argument.name, argument.ty.write));
    }
    about.push_str(&default(node.default));
    let lead = format!("{indent}    ");
    out.push('\n');
    paragraph(&about, &lead, style, out);
    for property in &node.properties {
        let SchemaProperty { name, about, required, default: without, acts, ty } = property;
        let text = format!("{name}=…{}  {about}: {}{}", marks(*required, false, *acts), ty.write, default(*without));
        paragraph(&text, &lead, style, out);
    }
    if node.word == "defaults" {
        paragraph("{ every child of `model` }", &lead, style, out);
        return;
    }
    for child in &node.children {
        write_node(child, level + 1, style, out);
    }
}

fn paragraph(text: &str, lead: &str, style: &Style, out: &mut String) {
    let width = style.width.saturating_sub(lead.len() + 2).max(40);
    for (index, line) in wrap(text, width).iter().enumerate() {
        out.push_str(&format!("{lead}{}{line}\n", if index == 0 { "" } else { "  " }));
    }
}

fn default(default: Option<&str>) -> String {
    default.map(|default| format!("; without: {default}")).unwrap_or_default()
}

fn marks(required: bool, repeatable: bool, acts: bool) -> String {
    let marks = [(required, " !"), (repeatable, " *"), (!acts, " ~")];
    marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| *mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_every_word_and_fits_the_width() {
        fn words(nodes: &[SchemaNode], out: &mut Vec<String>) {
            for node in nodes {
                out.push(node.word.to_owned());
                out.extend(node.properties.iter().map(|property| format!("{}=…", property.name)));
                words(&node.children, out);
            }
        }
        let schema = crate::config::schema();
        let text = schema_text(&schema, &Style::PLAIN);
        let mut all = Vec::new();
        words(&schema.nodes, &mut all);
        assert!(all.len() > 200, "{}", all.len());
        for word in all {
            assert!(text.contains(&word), "{word}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= Style::PLAIN.width), "{text}");
        assert!(text.contains("concurrency <count>\n") && text.contains("without: 1\n"), "{text}");
        assert!(text.contains("model <name> *\n") && text.contains("kind=… !  its protocol"), "{text}");
    }
}
