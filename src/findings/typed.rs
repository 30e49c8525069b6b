//! Finds figures that a template has as text, in place of taking them from the data.

/// Returns the figures that are typed by hand, with the numbers of their lines. Code, placeholders, the targets of
/// links, words with a letter (`K4`, `redis-3`), years and the marks of lists are none.
pub fn figures(template: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    let text = without(&without(template, "{{", "}}"), "{%", "%}");
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("    ") || line.trim_start().starts_with("```") {
            continue;
        }
        let prose = without(&without(line, "`", "`"), "](", ")");
        let words = prose.split(|c: char| c.is_whitespace() || "()[]|–,;:*\"".contains(c));
        let is_mark = |place: usize, word: &str| place == 0 && word.ends_with('.');
        for (place, word) in words.filter(|word| !word.is_empty()).enumerate() {
            let figure = word.trim_end_matches(['.', '!', '?']);
            let is_year = figure.len() == 4 && (figure.starts_with("19") || figure.starts_with("20"));
            let is_figure = figure.contains(|c: char| c.is_ascii_digit()) && !figure.contains(char::is_alphabetic);
            if is_figure && !is_year && !is_mark(place, word) {
                found.push((index + 1, figure.to_owned()));
            }
        }
    }
    found
}

/// Replaces each text from `open` to `close` by a letter; the lines keep their numbers.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(open) {
        let Some((inside, behind)) = after.split_once(close) else { break };
        out += before;
        out.push('x');
        out.extend(inside.chars().filter(|c| *c == '\n'));
        rest = behind;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_in_prose_is_found_with_its_line() {
        let text = "K4 of redis-3, seen in {{ claim('K4').count }}.\n\n21 % of the runs (5 of 5), 0.83.\n";
        let figures = figures(text);
        assert_eq!(figures, ["21", "5", "5", "0.83"].map(|figure| (3, figure.to_owned())));
    }

    #[test]
    fn a_figure_after_placeholders_of_several_lines_is_found_with_its_line() {
        let text = "{{ claim(\n'K4').count }} of\n{% set a =\n\n3 %}them and 7 more\n";
        assert_eq!(figures(text), [(5, "7".to_owned())]);
    }

    #[test]
    fn placeholders_code_links_years_and_lists_are_no_figures() {
        let text = "1. In 2016 [K1](k1.md#3) `--seed 7`:\n\n    run 42\n\n```\n9 of 9\n```\n{{\n3 }} a {% if 4 %} b\n";
        assert_eq!(figures(text), []);
    }
}
