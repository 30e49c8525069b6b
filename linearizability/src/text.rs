//! Values in messages.

/// A text of the file as a message shows it: a long one by its beginning, and control characters escaped. A raw line
/// break could forge the last line of the output, which has the verdict.
pub(crate) fn shortened(text: &str) -> String {
    let (begin, rest) = match text.char_indices().nth(40) {
        Some((end, _)) => (&text[..end], format!("… ({} bytes)", text.len())),
        None => (text, String::new()),
    };
    let mut shown = String::new();
    for char in begin.chars() {
        match char {
            // Harmless, and frequent in EDN.
            '"' | '\'' | '\\' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    shown + &rest
}
