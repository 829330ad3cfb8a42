//! `podwright logs`: the log of a container, or of several with a prefix on each line.
//!
//! A log that is followed survives a restart of the agent: it is requested with timestamps, and continued after the last line that was
//! printed.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::time::{Instant, sleep};

use super::select::{Selected, lookup, none_selected};
use super::{Client, ClientError, RESTART_MAX, RETRY_DELAY, containers, encode, pod_path};
use crate::cli::LogFlags;

/// Logs that are followed at once; the agent limits all streams to 200.
const FOLLOWED_MAX: usize = 50;

/// Prints the logs; with `-f`, until all containers have terminated.
pub(super) async fn logs(flags: &LogFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let Selected { pods, missing } = lookup(&client, &flags.selection).await?;
    if let Some(error) = missing_pods(&pods, &missing, flags) {
        return Err(error);
    }
    if pods.is_empty() {
        eprintln!("{}", none_selected(&flags.selection));
    }
    let mut sources: Vec<LogSource<'_>> = vec![];
    for pod in &pods {
        let names = match flags.all_containers {
            true => containers::all(pod),
            false => vec![containers::chosen(pod, flags.container.as_deref())],
        };
        sources.extend(names.into_iter().map(|container| LogSource::new(&client, flags, pod, container)));
    }
    if flags.follow && sources.len() > FOLLOWED_MAX {
        let message = format!("{} logs cannot be followed at once, at most {FOLLOWED_MAX} can", sources.len());
        return Err(ClientError::Usage(message));
    }
    if let [source] = sources.as_mut_slice() {
        source.prefix.clear();
        source.copy().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    let mut report = |copied: Result<(), ClientError>| {
        if let Err(error) = copied {
            eprintln!("podwright: {error}");
            code = ExitCode::FAILURE;
        }
    };
    if flags.follow {
        let mut followed: FuturesUnordered<_> = sources.iter_mut().map(LogSource::copy).collect();
        while let Some(copied) = followed.next().await {
            report(copied);
        }
    } else {
        for source in &mut sources {
            report(source.copy().await);
        }
    }
    Ok(code)
}

/// Names that no pod has. As in `kubectl logs POD CONTAINER`, the second may be meant as a container of the first.
fn missing_pods(pods: &[Pod], missing: &[String], flags: &LogFlags) -> Option<ClientError> {
    let first = missing.first()?;
    if let ([pod], [_]) = (pods, missing)
        && containers::all(pod).contains(first)
    {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        return Some(ClientError::Usage(format!("{first:?} is a container of pod {name:?}: use -c {first}")));
    }
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    Some(ClientError::no_pods(&missing, flags.selection.scope.namespace()))
}

/// The log of one container.
struct LogSource<'a> {
    client: &'a Client,
    flags: &'a LogFlags,
    pod: &'a Pod,
    container: String,
    /// Printed before each line.
    prefix: String,
    last: LastLine,
}

/// Where a followed log is continued: after this many lines of this time.
#[derive(Default)]
struct LastLine {
    time: String,
    lines: usize,
}

/// How a stream of lines ended.
#[derive(PartialEq)]
enum StreamEnd {
    /// The agent closed it.
    Complete,
    /// The connection failed.
    Cut,
    /// Stdout is closed.
    OutputClosed,
}

impl<'a> LogSource<'a> {
    fn new(client: &'a Client, flags: &'a LogFlags, pod: &'a Pod, container: String) -> Self {
        let prefix = format!("[{}/{container}] ", pod.metadata.name.as_deref().unwrap_or_default());
        Self { client, flags, pod, container, prefix, last: LastLine::default() }
    }

    /// Prints the log; a followed one until the container has terminated.
    async fn copy(&mut self) -> Result<(), ClientError> {
        let first_attempt = self.status(self.pod).map(|status| status.restart_count);
        loop {
            let resumed = !self.last.time.is_empty();
            let body = self.client.follow(&format!("{}/log?{}", pod_path(self.pod), self.query())).await?;
            let end = self.print_lines(body, resumed).await?;
            // The log of an instance that has ended does not grow.
            let grows = self.flags.follow && !self.flags.previous;
            if end == StreamEnd::OutputClosed || (!grows && end == StreamEnd::Complete) {
                return Ok(());
            }
            if !self.flags.follow {
                return Err(self.client.failed("the connection was closed before the end of the log"));
            }
            // The agent ends a stream when it stops: the container may run on.
            let Some(pod) = self.current_pod().await? else { return Ok(()) };
            let status = self.status(&pod);
            let running = status.is_some_and(|s| s.state.as_ref().is_some_and(|state| state.running.is_some()));
            let same = status.map(|status| status.restart_count) == first_attempt;
            if end == StreamEnd::Complete && !(running && same) {
                return Ok(());
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// The pod now; `None` if it is gone. An agent that has just started may not know its static pods yet.
    async fn current_pod(&self) -> Result<Option<Pod>, ClientError> {
        let until = Instant::now() + RESTART_MAX;
        loop {
            match self.client.get::<Pod>(&pod_path(self.pod)).await {
                Ok(pod) if pod.metadata.uid == self.pod.metadata.uid => return Ok(Some(pod)),
                Ok(_) => return Ok(None),
                Err(error) if error.is_not_found() && Instant::now() >= until => return Ok(None),
                Err(error) if error.is_not_found() => sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn status<'p>(&self, pod: &'p Pod) -> Option<&'p ContainerStatus> {
        let status = pod.status.as_ref()?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        lists.into_iter().flatten().flatten().find(|status| status.name == self.container)
    }

    fn query(&self) -> String {
        let flags = self.flags;
        let timestamps = flags.timestamps || flags.follow;
        let mut query = format!("follow={}&previous={}&timestamps={timestamps}", flags.follow, flags.previous);
        query.push_str(&format!("&container={}", encode(&self.container)));
        if !self.last.time.is_empty() {
            query.push_str(&format!("&sinceTime={}", encode(&self.last.time)));
            return query;
        }
        if let Some(lines) = flags.tail {
            query.push_str(&format!("&tailLines={lines}"));
        }
        if let Some(since) = flags.since {
            query.push_str(&format!("&sinceSeconds={}", since.as_secs().max(1)));
        }
        query
    }

    async fn print_lines(&mut self, mut body: Incoming, resumed: bool) -> Result<StreamEnd, ClientError> {
        let mut rest = BytesMut::new();
        let mut known = if resumed { std::mem::take(&mut self.last.lines) } else { 0 };
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Ok(StreamEnd::Cut) };
            rest.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(at + 1).freeze();
                if !self.print_line(&line, &mut known)? {
                    return Ok(StreamEnd::OutputClosed);
                }
            }
        }
        if !rest.is_empty() && !self.print_line(&rest.freeze(), &mut known)? {
            return Ok(StreamEnd::OutputClosed);
        }
        Ok(StreamEnd::Complete)
    }

    /// Prints a line, unless it is one of the `known` ones at the beginning of a continued log. False: stdout is closed.
    fn print_line(&mut self, line: &Bytes, known: &mut usize) -> Result<bool, ClientError> {
        let mut shown = &line[..];
        if self.flags.follow
            && let Some(at) = line.iter().position(|byte| *byte == b' ')
        {
            let time = String::from_utf8_lossy(&line[..at]);
            if !self.last.advance(&time, known) {
                return Ok(true);
            }
            if !self.flags.timestamps {
                shown = &line[at + 1..];
            }
        }
        let mut out = std::io::stdout().lock();
        match out.write_all(self.prefix.as_bytes()).and_then(|()| out.write_all(shown)).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).map_err(|error| ClientError::Write(error.to_string())),
        }
    }
}

impl LastLine {
    /// Counts a line. False if it is one of the `known` lines of the last time, which were printed before.
    fn advance(&mut self, time: &str, known: &mut usize) -> bool {
        if time != self.time {
            (self.time, self.lines, *known) = (time.to_owned(), 1, 0);
            return true;
        }
        self.lines += 1;
        if *known == 0 {
            return true;
        }
        *known -= 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_log_repeats_no_line_and_skips_none() {
        let mut last = LastLine::default();
        let mut known = 0;
        assert!(["1", "2", "2"].iter().all(|time| last.advance(time, &mut known)));
        // Continued from time 2, of which two lines were printed; a third was written meanwhile.
        let mut known = std::mem::take(&mut last.lines);
        let printed: Vec<bool> = ["2", "2", "2", "3"].iter().map(|time| last.advance(time, &mut known)).collect();
        assert_eq!(printed, [false, false, true, true]);
        assert_eq!((last.time.as_str(), last.lines), ("3", 1));
    }
}
