//! The host ids that pods with user namespaces may use: those that `getsubids` names for the user `kubelet`, as the administrator has
//! granted them (`/etc/subuid`, `/etc/subgid`). Without that user or that program: all but the first block (Go kubelet:
//! `getKubeletMappings`, `MakeUserNsManager`).

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Blocks of [`BLOCK_IDS`] ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdBlocks {
    /// Never 0: that block holds the ids of the host.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Why the ids are not known. The Go kubelet does not start then; here only pods with user namespaces fail.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubordinateIdsError {
    #[error("read {}: {source}", path.display())]
    Passwd { path: PathBuf, source: io::Error },
    #[error("run {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} {USER}: still running after {RUN_TIMEOUT:?}")]
    Timeout { program: String },
    #[error("{program} {USER}: {status}; add {USER} to /etc/subuid and /etc/subgid")]
    Failed { program: String, status: ExitStatus },
    #[error("user and group ids of {USER} differ: /etc/subuid and /etc/subgid must have the same range")]
    Mismatch,
    #[error("{0:?} is not one range of ids; {USER} must have one line in /etc/subuid and /etc/subgid")]
    Output(String),
    #[error(
        "the ids {first} to {last} of {USER} must begin at a multiple of {BLOCK_IDS}, not at 0, and their number be a multiple of it"
    )]
    Unaligned { first: u64, last: u64 },
    #[error("{count} ranges of {BLOCK_IDS} ids of {USER} are not enough for {max_pods} pods")]
    TooFew { count: u32, max_pods: usize },
}

/// Where they are looked up.
#[derive(Clone, Debug)]
pub(super) struct SubordinateIds {
    passwd: PathBuf,
    program: String,
    max_pods: usize,
}

impl SubordinateIds {
    pub(super) fn new(max_pods: usize) -> Self {
        Self { passwd: "/etc/passwd".into(), program: "getsubids".into(), max_pods }
    }

    /// Blocks.
    pub(super) fn blocks(&self) -> Result<IdBlocks, SubordinateIdsError> {
        let failed = |source| SubordinateIdsError::Passwd { path: self.passwd.clone(), source };
        let users = match std::fs::read_to_string(&self.passwd) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            users => users.map_err(failed)?,
        };
        // A program that asks a remote service cannot tell an unknown user from a service that is down.
        if !users.lines().any(|line| line.split(':').next() == Some(USER)) {
            return Ok(DEFAULT);
        }
        let Some(of_user) = self.run(&[USER])? else { return Ok(DEFAULT) };
        if self.run(&["-g", USER])?.as_ref() != Some(&of_user) {
            return Err(SubordinateIdsError::Mismatch);
        }
        parse(&of_user, self.max_pods)
    }

    /// What the program prints; `None`: it is not installed.
    fn run(&self, arguments: &[&str]) -> Result<Option<String>, SubordinateIdsError> {
        let program = || self.program.clone();
        let failed = |source| SubordinateIdsError::Start { program: program(), source };
        let mut command = Command::new(&self.program);
        let started = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = match started {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            child => child.map_err(failed)?,
        };
        let until = Instant::now() + RUN_TIMEOUT;
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(SubordinateIdsError::Timeout { program: program() });
                }
                None => std::thread::sleep(RUN_PAUSE),
            }
        };
        if !status.success() {
            return Err(SubordinateIdsError::Failed { program: program(), status });
        }
        let mut output = String::new();
        // One line; what is longer is no answer.
        let read = child.stdout.take().map(|stdout| stdout.take(OUTPUT_MAX).read_to_string(&mut output));
        read.transpose().map_err(failed)?;
        Ok(Some(output))
    }
}

/// One line: `0: kubelet 65536 2147483648`.
fn parse(output: &str, max_pods: usize) -> Result<IdBlocks, SubordinateIdsError> {
    let wrong = || SubordinateIdsError::Output(output.trim().chars().take(100).collect());
    let mut lines = output.trim_matches('\n').lines();
    let (Some(line), None) = (lines.next(), lines.next()) else { return Err(wrong()) };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, count] = words[..] else { return Err(wrong()) };
    let (first, count) = (first.parse::<u32>().map_err(|_| wrong())?, count.parse::<u32>().map_err(|_| wrong())?);
    let end = u64::from(first) + u64::from(count);
    let is_aligned = first % BLOCK_IDS == 0 && count % BLOCK_IDS == 0;
    if first == 0 || !is_aligned || end > 1 << 32 {
        return Err(SubordinateIdsError::Unaligned { first: first.into(), last: end.saturating_sub(1) });
    }
    let blocks = IdBlocks { first: first / BLOCK_IDS, count: count / BLOCK_IDS };
    match usize::try_from(blocks.count).is_ok_and(|count| count >= max_pods) {
        true => Ok(blocks),
        false => Err(SubordinateIdsError::TooFew { count: blocks.count, max_pods }),
    }
}

/// Kubernetes: `userNsLength`, the number of ids of one pod.
pub(super) const BLOCK_IDS: u32 = 65_536;
const USER: &str = "kubelet";
const DEFAULT: IdBlocks = IdBlocks { first: 1, count: u32::MAX / BLOCK_IDS };
const RUN_TIMEOUT: Duration = Duration::from_secs(5);
const RUN_PAUSE: Duration = Duration::from_millis(5);
const OUTPUT_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// With a user of this name, and a program that runs this script.
    fn lookup(user: &str, script: Option<&str>) -> Result<IdBlocks, String> {
        let dir = tempfile::tempdir().unwrap();
        let (passwd, program) = (dir.path().join("passwd"), dir.path().join("getsubids"));
        std::fs::write(&passwd, format!("root:x:0:0::/root:/bin/sh\n{user}:x:900:900::/:/bin/false\n")).unwrap();
        if let Some(script) = script {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let program = program.to_str().unwrap().to_owned();
        let ids = SubordinateIds { passwd, program, max_pods: 110 };
        loop {
            match ids.blocks().map_err(|error| error.to_string()) {
                // A process that another test forks has the script open for a moment.
                Err(error) if error.contains("Text file busy") => std::thread::sleep(RUN_PAUSE),
                found => return found,
            }
        }
    }

    #[test]
    fn the_ids_are_those_of_the_user_kubelet() {
        let range = "echo '0: kubelet 131072 13107200'";
        assert_eq!(lookup("kubelet", Some(range)), Ok(IdBlocks { first: 2, count: 200 }));
        assert_eq!(lookup("kubelet", None), Ok(DEFAULT), "the program is not installed");
        assert_eq!(lookup("kubelets", Some("exit 1")), Ok(DEFAULT), "the user does not exist");
        assert_eq!((DEFAULT.first * BLOCK_IDS, DEFAULT.count), (65_536, 65_535), "as the Go kubelet");
    }

    #[test]
    fn ids_that_can_not_be_used_are_an_error_that_says_what_to_change() {
        for (script, text) in [
            ("exit 1", "/etc/subuid"),
            ("echo '0: kubelet 65536 65536000'; [ \"$1\" != -g ] || echo more", "differ"),
            ("echo", "one range"),
            ("printf '0: kubelet 65536 65536000\\n1: kubelet 1 2\\n'", "one line"),
            ("echo '0: kubelet many 65536000'", "one range"),
            ("echo '0: kubelet 100000 65536000'", "multiple of 65536"),
            ("echo '0: kubelet 0 65536000'", "not at 0"),
            ("echo '0: kubelet 65536 65537'", "multiple of it"),
            ("echo '0: kubelet 4294901760 131072'", "multiple"),
            ("echo '0: kubelet 65536 65536'", "not enough for 110 pods"),
        ] {
            let error = lookup("kubelet", Some(script)).unwrap_err();
            assert!(error.contains(text), "{script}: {error}");
        }
    }
}
