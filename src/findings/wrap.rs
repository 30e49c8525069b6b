//! Breaks the lines of a page again after its figures are in place.

/// The most columns of a line.
const COLUMNS: usize = 120;

/// Breaks paragraphs and items of lists. Tables, headings, pictures, comments and code stay as they are.
pub fn wrapped(page: &str) -> String {
    let mut out = String::new();
    let mut paragraph = String::new();
    let mut is_fenced = false;
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        let is_fixed = is_fenced || is_fence || line.is_empty() || line.starts_with(['|', '#', '!', '<']);
        let is_code = paragraph.is_empty() && line.starts_with("    ");
        is_fenced ^= is_fence;
        if is_fixed || is_code || line.starts_with("- ") {
            flush(&mut paragraph, &mut out);
        }
        if is_fixed || is_code {
            out += line;
            out.push('\n');
        } else {
            paragraph += line.trim();
            paragraph.push(' ');
        }
    }
    flush(&mut paragraph, &mut out);
    out
}

fn flush(paragraph: &mut String, out: &mut String) {
    let indent = if paragraph.starts_with("- ") { "  " } else { "" };
    let mut line = String::new();
    for word in std::mem::take(paragraph).split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            *out += &line;
            out.push('\n');
            line = format!("{indent}{word}");
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
    }
    if !line.is_empty() {
        *out += &line;
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_items_are_broken_and_tables_are_not() {
        let long = "word ".repeat(30);
        let page = format!("# H\n\na\nb {long}\n- one\n  two {long}\n- three\n\n| {long}|\n\n    code {long}\n");
        let wrapped = wrapped(&page);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert_eq!(lines[..2], ["# H", ""]);
        assert!(lines[2].starts_with("a b word"), "{wrapped}");
        assert!(lines.iter().any(|line| line.starts_with("- one two word")), "{wrapped}");
        assert!(lines.iter().any(|line| line.starts_with("  word")), "{wrapped}");
        let is_prose = |line: &&&str| !line.starts_with(['|', ' ']) && line.chars().count() > COLUMNS;
        assert_eq!(lines.iter().find(is_prose), None);
        assert!(wrapped.contains(&format!("- three\n\n| {long}|\n\n    code {long}\n")), "{wrapped}");
    }
}
