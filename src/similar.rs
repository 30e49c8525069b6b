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
    // Words that begin with the unknown word come first.
    let key = |(similarity, known): &(f64, &str)| (known.starts_with(word), *similarity);
    near.sort_by(|one, other| {
        let (one, other) = (key(one), key(other));
        other.0.cmp(&one.0).then(other.1.total_cmp(&one.1))
    });
    let mut names: Vec<&str> = Vec::new();
    for (_, known) in near {
        if names.len() < MOST && !names.contains(&known) {
            names.push(known);
        }
    }
    if names.is_empty() { String::new() } else { format!("; similar words: {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_the_same_beginning_come_first_and_each_word_once() {
        let known = ["data", "data.late", "data.late", "data.lost_updates", "lock"];
        let told = similar("data.lost", known);
        assert!(told.starts_with("; similar words: data.lost_updates"), "{told}");
        assert_eq!(told.matches("data.late").count(), 1, "{told}");
        assert_eq!(similar("zzz", known), "");
    }
}
