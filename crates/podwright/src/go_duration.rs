//! Durations in the syntax of Go: `1h30m`, `0.5s`, `300ms`.

use std::time::Duration;

/// Why a text is not an accepted duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GoDurationError {
    #[error("{0:?} is not a duration such as 20s, 1m30s or 500ms")]
    Syntax(String),
    #[error("{0:?} is negative")]
    Negative(String),
    #[error("{0:?} is too long")]
    TooLong(String),
}

/// Parses a duration. Negative durations are rejected: no setting accepts them.
pub(crate) fn parse(text: &str) -> Result<Duration, GoDurationError> {
    let wrong = || GoDurationError::Syntax(text.to_owned());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        nanos = nanos.saturating_add(amount(number, unit).ok_or_else(wrong)?);
        rest = tail;
    }
    if negative && nanos > 0 {
        return Err(GoDurationError::Negative(text.to_owned()));
    }
    // The limit of Go's time.Duration: 292 years.
    match u64::try_from(nanos) {
        Ok(nanos) if nanos <= i64::MAX.unsigned_abs() => Ok(Duration::from_nanos(nanos)),
        _ => Err(GoDurationError::TooLong(text.to_owned())),
    }
}

fn amount(number: &str, unit: &str) -> Option<u128> {
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits after the fifteenth are less than a nanosecond even in hours.
    let digits = &fraction[..fraction.len().min(15)];
    let part: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let exponent = u32::try_from(digits.len()).expect("at most fifteen");
    Some(whole.saturating_mul(scale) + part * scale / 10u128.pow(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("20s", 20_000),
            ("1h30m0.5s", 5_400_500),
            ("1m0s", 60_000),
            ("1.5h", 5_400_000),
            ("100ms", 100),
            (".5s", 500),
            ("1.s", 1_000),
            ("+2m", 120_000),
            ("-0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("1ns"), Ok(Duration::from_nanos(1)));
        assert_eq!(parse("1µs2us"), Ok(Duration::from_micros(3)));
        assert_eq!(parse("0.3333333333333333333h"), Ok(Duration::from_nanos(1_199_999_999_999)));
        assert_eq!(parse("2562047h47m16.854775807s"), Ok(Duration::from_nanos(i64::MAX.unsigned_abs())));
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in [
            "",
            "-",
            "20",
            "s",
            "1x",
            "1.2.3s",
            ".s",
            "1 s",
            " 1s",
            "1s ",
            "1h-1m",
            "-5s",
            "1d",
            "2562048h",
            "99999999999999999999999h",
            "١s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
