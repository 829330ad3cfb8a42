//! `podwright logs`.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use http_body_util::BodyExt;

use super::{Client, ClientError, encode, find, pod_path};
use crate::cli::LogFlags;

/// Prints the log; with `-f`, until the container has terminated.
pub(super) async fn logs(flags: &LogFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), &flags.pod).await?;
    let mut query = format!("follow={}&previous={}&timestamps={}", flags.follow, flags.previous, flags.timestamps);
    let parameters = [
        ("container", flags.container.clone()),
        ("tailLines", flags.tail.map(|n| n.to_string())),
        ("sinceSeconds", flags.since.map(|since| since.as_secs().max(1).to_string())),
    ];
    for (name, value) in parameters {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", encode(&value)));
        }
    }
    let mut body = client.follow(&format!("{}/log?{query}", pod_path(&pod))).await?;
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|error| client.failed(error))?.into_data().unwrap_or_default();
        let mut out = std::io::stdout().lock();
        match out.write_all(&data).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written.map_err(|error| ClientError::Write(error.to_string()))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
