//! `podwright complete-names`: what the completion scripts of shells show. Errors are silent: a shell is not the place for them.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use super::{Client, ClientError, List, containers, find, path, print};
use crate::cli::{Cli, CompleteNamesFlags, CompletedNames, NameCompletion};

/// A user waits for it at every press of a key.
const LIMIT: Duration = Duration::from_secs(2);

/// Prints the names, one per line.
pub(super) async fn complete_names(flags: &CompleteNamesFlags) -> Result<ExitCode, ClientError> {
    let Some(completion) = Cli::name_completion(&flags.arguments) else { return Ok(ExitCode::SUCCESS) };
    let client = Client::new(completion.run_dir.as_ref().unwrap_or(&flags.socket.run_dir));
    let names = timeout(LIMIT, names(&client, &completion)).await;
    let lines: String = names.ok().and_then(Result::ok).into_iter().flatten().map(|name| name + "\n").collect();
    Ok(print(&lines))
}

async fn names(client: &Client, completion: &NameCompletion) -> Result<Vec<String>, ClientError> {
    let namespace = completion.namespace.as_deref().unwrap_or("default");
    match &completion.what {
        CompletedNames::Pods { prefix } => {
            let pods = client.get::<List<Pod>>(&path("pods", Some(namespace))).await?.items;
            Ok(pods.iter().filter_map(|pod| Some(format!("{prefix}{}", pod.metadata.name.as_deref()?))).collect())
        }
        CompletedNames::Containers { pod } => Ok(containers::all(&find(client, namespace, pod).await?)),
    }
}
