//! Names of signals: those of images (`SIGTERM`, `TERM`, `SIGRTMIN+3`, `15`) and those of the CRI.

use podwright_cri::v1;

/// The number of a signal by its name or number, 1 to 64; `None`: there is no such signal.
pub(crate) fn parse(text: &str) -> Option<i32> {
    let text = text.trim().to_ascii_uppercase();
    if let Ok(number) = text.parse::<i32>() {
        return (1..=RTMAX).contains(&number).then_some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let real_time = match name.split_at_checked(5) {
        Some(("RTMIN", rest)) => Some((RTMIN, rest)),
        Some(("RTMAX", rest)) => Some((RTMAX, rest)),
        _ => None,
    };
    if let Some((base, rest)) = real_time {
        let offset = if rest.is_empty() { 0 } else { rest.parse::<i32>().ok()? };
        return base.checked_add(offset).filter(|number| (RTMIN..=RTMAX).contains(number));
    }
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The number of a signal of the CRI; `None`: the runtime decides.
pub(crate) fn of_api(signal: i32) -> Option<i32> {
    let name = v1::Signal::try_from(signal).ok()?.as_str_name();
    parse(&name.strip_prefix("SIGNAL_")?.replace("PLUS", "+").replace("MINUS", "-"))
}

/// The signal of the CRI with this number; the default one if it has no name there.
pub(crate) fn api_name(number: i32) -> v1::Signal {
    let name = match number {
        RTMIN => "RTMIN".to_owned(),
        RTMAX => "RTMAX".to_owned(),
        35..=49 => format!("RTMINPLUS{}", number - RTMIN),
        50..=63 => format!("RTMAXMINUS{}", RTMAX - number),
        _ => NAMES.iter().find(|(_, known)| *known == number).map(|(name, _)| (*name).to_owned()).unwrap_or_default(),
    };
    v1::Signal::from_str_name(&format!("SIGNAL_SIG{name}")).unwrap_or_default()
}

/// As containerd: what neither the pod nor the image names.
pub(crate) const DEFAULT_STOP_SIGNAL: i32 = 15;

/// glibc's range: two more are used by the C library.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The numbers of x86 and arm64. Of two names for one number the first is shown.
const NAMES: [(&str, i32); 34] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_images_are_understood() {
        let cases = [("SIGTERM", 15), ("term", 15), ("9", 9), ("SIGRTMIN+3", 37), ("RTMAX-1", 63), ("SIGIO", 29)];
        for (text, number) in cases {
            assert_eq!(parse(text), Some(number), "{text}");
        }
        for text in ["", "0", "65", "SIGNONE", "RTMIN+31", "RTMIN+x", "-1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_signal_of_the_api_has_a_number_that_leads_back() {
        for signal in 1..=65 {
            let number = of_api(signal).unwrap_or_else(|| panic!("{signal}"));
            assert_eq!(of_api(api_name(number).into()), Some(number), "{signal}");
        }
        assert_eq!((of_api(0), api_name(0)), (None, v1::Signal::RuntimeDefault));
    }
}
