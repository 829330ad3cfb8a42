//! Durations as Go writes them: `1h30m`, `0.5s`, `300ms`.

use std::time::Duration;

/// Read one, or say why not. Negative ones are none: nothing here takes them.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write it like 20s, 1m30s or 500ms");
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
        return Err(format!("{text:?} is negative"));
    }
    // As far as Go's own go: 292 years.
    match u64::try_from(nanos) {
        Ok(nanos) if nanos <= i64::MAX.unsigned_abs() => Ok(Duration::from_nanos(nanos)),
        _ => Err(format!("{text:?} is too long")),
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
    // What is finer than fifteen digits is finer than a nanosecond of an hour.
    let digits = &fraction[..fraction.len().min(15)];
    let part: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let exponent = u32::try_from(digits.len()).expect("at most fifteen");
    Some(whole.saturating_mul(scale) + part * scale / 10u128.pow(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
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
    fn what_is_no_duration_is_refused() {
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
