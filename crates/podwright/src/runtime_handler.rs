//! A runtime handler on the command line: `runc=/usr/sbin/runc` or `gvisor=/usr/local/bin/runsc,root=/run/runsc`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use podwright_engine::OciRuntime;

/// The handler of a RuntimeClass and its OCI runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeHandlerFlag {
    pub(crate) name: String,
    pub(crate) runtime: OciRuntime,
}

/// Why a text is not a handler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuntimeHandlerError {
    #[error("write NAME=PATH, such as runc=/usr/sbin/runc")]
    Form,
    #[error("{0:?} is not a valid name of a handler: lower case letters, digits, - and .")]
    Name(String),
    #[error("{0:?} is the handler of the engine itself")]
    Builtin(String),
    #[error("{0:?} must be an absolute path")]
    Path(String),
    #[error("{0:?} is not an option; root=DIR is the only one")]
    Option(String),
}

impl FromStr for RuntimeHandlerFlag {
    type Err = RuntimeHandlerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rest) = text.split_once('=').ok_or(RuntimeHandlerError::Form)?;
        // As the validation of RuntimeClass.handler has it: a label of DNS.
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if name.is_empty() || name.len() > 63 || !name.chars().all(plain) || !name.starts_with(char::is_alphanumeric) {
            return Err(RuntimeHandlerError::Name(name.to_owned()));
        }
        if name == "podwright" {
            return Err(RuntimeHandlerError::Builtin(name.to_owned()));
        }
        let mut parts = rest.split(',');
        let path = absolute(parts.next().unwrap_or_default())?;
        let mut root = None;
        for option in parts {
            let dir = option.strip_prefix("root=").ok_or_else(|| RuntimeHandlerError::Option(option.to_owned()))?;
            root = Some(absolute(dir)?);
        }
        Ok(Self { name: name.to_owned(), runtime: OciRuntime { path, root } })
    }
}

fn absolute(text: &str) -> Result<PathBuf, RuntimeHandlerError> {
    match Path::new(text).is_absolute() {
        true => Ok(text.into()),
        false => Err(RuntimeHandlerError::Path(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_has_a_name_a_program_and_perhaps_a_root() {
        let runtime = |path: &str, root: Option<&str>| OciRuntime { path: path.into(), root: root.map(Into::into) };
        let parsed: RuntimeHandlerFlag = "runc=/usr/sbin/runc".parse().unwrap();
        assert_eq!((parsed.name.as_str(), parsed.runtime), ("runc", runtime("/usr/sbin/runc", None)));
        let parsed: RuntimeHandlerFlag = "g.1=/r,root=/run/g".parse().unwrap();
        assert_eq!((parsed.name.as_str(), parsed.runtime), ("g.1", runtime("/r", Some("/run/g"))));
        for (text, reason) in [
            ("runc", "NAME=PATH"),
            ("=/r", "not a valid name"),
            ("../x=/r", "not a valid name"),
            ("podwright=/r", "engine itself"),
            ("runc=runc", "absolute"),
            ("runc=/r,root=x", "absolute"),
            ("runc=/r,debug", "only one"),
        ] {
            let error = text.parse::<RuntimeHandlerFlag>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
