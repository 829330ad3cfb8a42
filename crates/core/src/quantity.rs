//! Kubernetes quantities: `500m`, `1.5Gi`, `2e3`.
//!
//! An [`Amount`] is a whole number of billionths, the finest unit of the API; smaller fractions are rounded away from zero, so
//! that a small request does not become zero. It keeps the kind of suffix, so that it prints like the API server.

mod text;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Quantities by the name of their resource, as in the API.
pub(crate) type Quantities = BTreeMap<String, Quantity>;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// The text is empty.
    #[error("a quantity must not be empty: write a number such as 500m or 1Gi")]
    Empty,
    /// The number before the suffix is invalid.
    #[error("{0:?} is not a quantity: it must begin with a decimal number")]
    Number(String),
    /// The suffix is unknown.
    #[error(
        "{text:?} is not a quantity: unknown suffix {suffix:?}, use one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
    )]
    Suffix {
        /// The whole text.
        text: String,
        /// The part that is unknown.
        suffix: String,
    },
}

/// The kind of suffix of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `m`, `k`, `M`, …
    Decimal,
    /// `Ki`, `Mi`, …
    Binary,
    /// `e3`.
    Exponent,
}

/// A parsed quantity. Serialized as text.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(into = "Quantity", try_from = "Quantity")]
pub struct Amount {
    nanos: i128,
    format: Format,
}

impl Amount {
    /// Also used for a request that is not set.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Decimal };

    /// A whole number of bytes, pods, …
    pub fn from_whole(value: i64) -> Self {
        Self { nanos: i128::from(value) * NANO, format: Format::Decimal }
    }

    /// A number of bytes, printed with a binary suffix.
    pub fn from_bytes(value: i64) -> Self {
        Self { format: Format::Binary, ..Self::from_whole(value) }
    }

    /// In whole units, rounded away from zero; saturates.
    pub fn value(self) -> i64 {
        clamp(div_away(self.nanos, NANO))
    }

    /// In thousandths, rounded away from zero; saturates.
    pub fn milli_value(self) -> i64 {
        clamp(div_away(self.nanos, NANO / 1000))
    }

    /// Equal to zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Greater than zero.
    pub fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// Less than zero.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Rounded up to thousandths, as the API server stores resources.
    pub(crate) fn round_to_milli(self) -> Self {
        let step = NANO / 1000;
        Self { nanos: div_away(self.nanos, step) * step, ..self }
    }

    /// It is a whole number of units.
    pub(crate) fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The sum; it has the format of the first unless that is zero.
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: (self.nanos + other.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Amount {}
impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl TryFrom<&Quantity> for Amount {
    type Error = QuantityError;
    fn try_from(quantity: &Quantity) -> Result<Self, QuantityError> {
        quantity.0.parse()
    }
}

impl FromStr for Amount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = digits(rest);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Number(text.into()));
        }
        let (base, exponent, mut format) = interpret(suffix)
            .ok_or_else(|| QuantityError::Suffix { text: text.into(), suffix: suffix.chars().take(20).collect() })?;
        let mut nanos = scale(whole, fraction, base, exponent);
        if format == Format::Binary {
            nanos = nanos.min(i128::from(i64::MAX) * NANO);
            // Fractions with a binary suffix are printed with a decimal one, as the API server does.
            if nanos < NANO && nanos > 0 {
                format = Format::Decimal;
            }
        }
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// The canonical form: no fraction, the largest suffix without loss.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.is_whole() && self.nanos.abs() >= 1024 * NANO {
            let mut number = self.nanos / NANO;
            let mut power = 0;
            while number % 1024 == 0 && power < BINARY.len() - 1 {
                number /= 1024;
                power += 1;
            }
            return write!(f, "{number}{}", BINARY[power].0);
        }
        let mut number = self.nanos;
        let mut power = 0;
        while number % 1000 == 0 && power < DECIMAL.len() - 1 {
            number /= 1000;
            power += 1;
        }
        match self.format {
            Format::Exponent if DECIMAL[power].1 == 0 => write!(f, "{number}"),
            Format::Exponent => write!(f, "{number}e{}", DECIMAL[power].1),
            _ => write!(f, "{number}{}", DECIMAL[power].0),
        }
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn interpret(suffix: &str) -> Option<(u32, i64, Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some((10, *power, Format::Decimal));
    }
    if let Some((_, power)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Some((2, *power, Format::Binary));
    }
    let number = suffix.strip_prefix(['e', 'E'])?;
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // An exponent that does not fit is saturated: the cap or the rounding decides anyway.
    let magnitude = unsigned.parse::<i64>().unwrap_or(EXPONENT_LIMIT).min(EXPONENT_LIMIT);
    Some((10, if number.starts_with('-') { -magnitude } else { magnitude }, Format::Exponent))
}

/// `whole.fraction × base^exponent` in billionths, rounded up, capped.
fn scale(whole: &str, fraction: &str, base: u32, exponent: i64) -> i128 {
    let fraction = fraction.trim_end_matches('0');
    let (kept, dropped) = fraction.split_at(fraction.len().min(FRACTION_KEPT));
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(kept.bytes()) {
        mantissa = mantissa.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    if mantissa == 0 && dropped.is_empty() {
        return 0;
    }
    // Further digits only affect rounding.
    let mantissa = mantissa.saturating_mul(10).saturating_add(i128::from(!dropped.is_empty()));
    let mut shift = 9 - 1 - i64::try_from(kept.len()).expect("at most FRACTION_KEPT");
    let mut result = mantissa;
    match base {
        2 => result = result.saturating_mul(1i128 << exponent),
        _ => shift += exponent,
    }
    for _ in 0..shift.max(0) {
        result = result.saturating_mul(10);
    }
    for step in 0..(-shift).max(0) {
        let last = step + 1 == -shift;
        // Rounding up at every step is rounding up once: ceil(ceil(a/b)/c) = ceil(a/bc).
        result = div_away(result, 10);
        if result <= 1 && !last {
            return 1;
        }
    }
    result.min(MAX_NANOS)
}

fn div_away(value: i128, by: i128) -> i128 {
    value / by + (value % by).signum()
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

const NANO: i128 = 1_000_000_000;
/// Upper bound; far enough from overflow that sums cannot overflow.
const MAX_NANOS: i128 = 1_000_000_000_000_000_000 * NANO * NANO;
const FRACTION_KEPT: usize = 18;
const EXPONENT_LIMIT: i64 = 64;
/// Suffixes and their power of ten.
const DECIMAL: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Suffixes and their power of two; the empty one is caught by the decimal table.
const BINARY: [(&str, i64); 7] = [("", 0), ("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

#[cfg(test)]
mod law_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn values_are_those_of_the_go_parser() {
        // text, in nanos where it fits, milli, whole
        for (text, milli, whole) in [
            ("0", 0, 0),
            ("0Ki", 0, 0),
            ("1", 1000, 1),
            ("8Ki", 8_192_000, 8192),
            ("7Mi", 7_340_032_000, 7_340_032),
            ("100Ti", 109_951_162_777_600_000, 109_951_162_777_600),
            ("5n", 1, 1),
            ("4u", 1, 1),
            ("3m", 3, 1),
            ("100m", 100, 1),
            ("1500m", 1500, 2),
            ("50k", 50_000_000, 50_000),
            ("300T", 300_000_000_000_000_000, 300_000_000_000_000),
            ("1E-3", 1, 1),
            ("1e3", 1_000_000, 1000),
            ("1.3E+6", 1_300_000_000, 1_300_000),
            ("0.5e-1", 50, 1),
            ("100.035k", 100_035_000, 100_035),
            ("0.0005k", 500, 1),
            ("0.001", 1, 1),
            ("9.01", 9010, 10),
            ("6.987654321G", 6_987_654_321_000, 6_987_654_321),
            ("100.035Ki", 102_435_840, 102_436),
            ("0.5Mi", 524_288_000, 524_288),
            ("0.05Gi", 53_687_091_200, 53_687_092),
            (".001", 1, 1),
            ("1.", 1000, 1),
            ("1.G", 1_000_000_000_000, 1_000_000_000),
            ("-9.01", -9010, -10),
            ("-1", -1000, -1),
            ("+2", 2000, 2),
            ("0.0000000001", 1, 1),
            ("0.00000000000000000000000000000001", 1, 1),
            ("1e-400", 1, 1),
            ("1E", i64::MAX, 1_000_000_000_000_000_000),
        ] {
            assert_eq!((amount(text).milli_value(), amount(text).value()), (milli, whole), "{text}");
        }
    }

    #[test]
    fn nanos_round_up() {
        for (text, nanos) in
            [("3.001n", 4), ("1.1E-9", 2), ("0.9n", 1), ("0.00000012345", 124), ("0.000000000001Ki", 2), ("3n", 3)]
        {
            assert_eq!(amount(text).nanos, nanos, "{text}");
        }
    }

    #[test]
    fn huge_binary_quantities_are_capped() {
        assert_eq!(amount("9Ei").value(), i64::MAX);
        assert_eq!(amount("9223372036854775807Ki").value(), i64::MAX);
        assert_eq!(amount("1.123456789012345678Ei").value(), 1_295_257_491_548_890_609);
        assert_eq!(amount(&"9".repeat(5000)).value(), i64::MAX);
        assert_eq!(amount("1e999999999999999999999").value(), i64::MAX);
        assert_eq!(amount("-1e999").value(), i64::MIN);
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for text in [
            "", ".", "-", "-.", "Ki", "aoeu", "1.1.M", "1+1.0M", "0.1mi", "0.1am", ".5i", "1i", "-3.01i", "-3.01e-",
            " 1", "1 ", "1 k", "1KI", "1e", "1e1.5", "--1", "0x10", "1K", "١",
        ] {
            assert!(text.parse::<Amount>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn prints_the_canonical_form() {
        for (text, canonical) in [
            ("1024Mi", "1Gi"),
            ("307200Ki", "300Mi"),
            ("1025024Mi", "1001Gi"),
            ("5000m", "5"),
            ("0.5", "500m"),
            ("1000M", "1G"),
            ("0.001T", "1G"),
            ("1000u", "1m"),
            ("1.08", "1080m"),
            ("1080000000n", "1080m"),
            ("0Mi", "0"),
            ("0.5Ki", "512"),
            ("100.035Ki", "102435840m"),
            ("1e3", "1e3"),
            ("0.5e0", "500e-3"),
            ("12e0", "12"),
            ("-9.01", "-9010m"),
            ("2Ki", "2Ki"),
        ] {
            assert_eq!(amount(text).to_string(), canonical, "{text}");
            assert_eq!(amount(canonical), amount(text));
        }
    }

    #[test]
    fn sums_and_order_ignore_the_suffix() {
        assert_eq!(amount("1Gi"), amount("1073741824"));
        assert!(amount("10000T") > amount("100Gi"));
        assert_eq!(amount("500m").plus(amount("0.5")), amount("1"));
        assert_eq!(amount("4u").round_to_milli().to_string(), "1m");
    }
}
