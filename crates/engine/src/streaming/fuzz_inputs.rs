//! What clients send, for the fuzz targets.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::spdy::serve_spdy;
use super::streams::OpenedStream;

/// A connection on which the client sends these bytes, with a session that returns what it gets.
pub async fn spdy(bytes: &[u8]) {
    let session = |mut opened: mpsc::Receiver<OpenedStream>| async move {
        let mut echoes = FuturesUnordered::new();
        loop {
            tokio::select! {
                stream = opened.recv() => match stream {
                    Some(stream) => echoes.push(echo(stream)),
                    None => return,
                },
                Some(()) = echoes.next() => {}
            }
        }
    };
    let transport = tokio::io::join(bytes, tokio::io::sink());
    // Garbage ends the connection.
    let _ = serve_spdy(transport, STREAMS_MAX, Duration::from_secs(60), session).await;
}

async fn echo(mut stream: OpenedStream) {
    while let Some(chunk) = stream.input.next().await {
        if stream.reset.is_cancelled() || stream.output.write(chunk).await.is_err() {
            return;
        }
    }
    let _ = stream.output.finish().await;
}

const STREAMS_MAX: usize = 16;
