use super::{EdnReader, LENGTH};

/// A reader of a text, as if it had taken so many characters of the present form before.
fn reader_after(length: usize, text: &str) -> EdnReader<&[u8]> {
    EdnReader { length, ..EdnReader::new(text.as_bytes()) }
}

#[test]
fn the_characters_of_each_form_are_counted_anew() {
    let mut reader = reader_after(LENGTH, "{:a 1} {:b 2}\n{:c 3}");
    for line in [1, 1, 2] {
        assert_eq!(reader.next().unwrap().map(|(line, _)| line), Some(line));
        reader.length = LENGTH;
    }
    assert_eq!(reader.next().unwrap(), None);
    // This form has six characters.
    for (length, is_read) in [(LENGTH - 6, true), (LENGTH - 5, false)] {
        assert_eq!(reader_after(length, "{:a 1}").form(0).is_ok(), is_read, "{length}");
    }
}
