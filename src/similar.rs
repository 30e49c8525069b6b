//! Suggestions for a word that is not known.

/// Words that are at least this similar to an unknown word are suggested.
const SIMILAR: f64 = 0.8;
/// The largest number of suggestions.
const MOST: usize = 5;

/// Returns the words of `known` that are similar to `word`, as the end of a message; nothing if there are none.
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut near: Vec<(f64, &str)> =
        known.into_iter().map(|known| (strsim::jaro_winkler(known, word), known)).collect();
    near.retain(|(similarity, known)| *similarity >= SIMILAR || known.contains(word));
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    let near: Vec<&str> = near.iter().map(|(_, known)| *known).take(MOST).collect();
    if near.is_empty() { String::new() } else { format!("; similar words: {}", near.join(", ")) }
}
