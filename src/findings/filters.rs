//! The ways in which a page writes its figures.

use minijinja::{Error, ErrorKind, Value};

fn number(value: &Value) -> Result<f64, Error> {
    let refused = || Error::new(ErrorKind::InvalidOperation, format!("`{value}` is no number"));
    f64::try_from(value.clone()).map_err(|_| refused())
}

/// The ends of a span; of a number, the number twice.
fn ends(value: &Value) -> Result<(f64, f64), Error> {
    match (value.get_attr("min"), value.get_attr("max")) {
        (Ok(min), Ok(max)) if !min.is_undefined() && !max.is_undefined() => Ok((number(&min)?, number(&max)?)),
        _ => number(value).map(|number| (number, number)),
    }
}

fn between(low: String, high: String, unit: &str) -> String {
    if low == high { format!("{low}{unit}") } else { format!("{low}–{high}{unit}") }
}

/// Milliseconds, or a span of them, in seconds: `1.91 s`, `1.91–2.05 s`.
pub fn seconds(value: Value) -> Result<String, Error> {
    let (low, high) = ends(&value)?;
    Ok(between(format!("{:.2}", low / 1e3), format!("{:.2}", high / 1e3), " s"))
}

/// A whole number, or a span of them: `5`, `4–7`.
pub fn range(value: Value) -> Result<String, Error> {
    let (low, high) = ends(&value)?;
    Ok(between(format!("{low:.0}"), format!("{high:.0}"), ""))
}

/// A share: `94 %`.
pub fn percent(value: Value) -> Result<String, Error> {
    Ok(format!("{:.0} %", number(&value)? * 100.0))
}

/// A duration of a plan, in seconds: `2.5 s` for `2500ms`, and for the number of milliseconds 2500.
pub fn duration(value: Value) -> Result<String, Error> {
    if value.is_number() {
        return Ok(format!("{} s", number(&value)? / 1e3));
    }
    let text = value.to_string();
    let duration = humantime::parse_duration(&text)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("`{text}` is no duration: {e}")))?;
    Ok(format!("{} s", duration.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn a_span_with_equal_ends_is_one_number() {
        let span = |min: f64, max: f64| context! { min => min, max => max };
        assert_eq!(seconds(span(1910.4, 1912.0)).unwrap(), "1.91 s");
        assert_eq!(seconds(span(1910.0, 2050.0)).unwrap(), "1.91–2.05 s");
        assert_eq!(seconds(Value::from(59.9)).unwrap(), "0.06 s");
        assert_eq!(range(span(4.0, 7.0)).unwrap(), "4–7");
        assert_eq!(percent(Value::from(0.935)).unwrap(), "94 %");
        assert_eq!(duration(Value::from("2500ms")).unwrap(), "2.5 s");
        assert_eq!(duration(Value::from(60_000)).unwrap(), "60 s");
    }

    #[test]
    fn a_word_in_place_of_a_number_is_refused() {
        for filter in [seconds, range, percent, duration] {
            assert!(filter(Value::from("many")).unwrap_err().to_string().contains("`many`"));
        }
    }
}
