//! Images behind the local API: bodies as streams, errors, limits, and clients that go away.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::ready;
use futures::stream::{self, StreamExt};

use super::*;

/// Images whose work the name of the image selects.
#[derive(Default)]
struct TestImages {
    /// Pulls that have begun and not ended.
    pulling: Arc<AtomicUsize>,
    loaded: Arc<std::sync::Mutex<Option<Result<usize, std::io::ErrorKind>>>>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn missing() -> ImageRequestError {
    ImageRequestError::new(ImageErrorKind::NotFound, "image a does not exist")
}

fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageRequestError> + Send + 'static,
) -> ImageFuture<T> {
    let (sender, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(work()));
    Box::pin(async { result.await.unwrap() })
}

impl NodeImages for TestImages {
    fn list(&self) -> ImageFuture<Vec<NodeImage>> {
        Box::pin(ready(Ok(vec![])))
    }

    fn inspect(&self, images: Vec<String>) -> ImageFuture<Vec<Value>> {
        Box::pin(ready(Ok(images.into_iter().map(Value::from).collect())))
    }

    /// `absent` fails at once, everything else hangs after its first line.
    fn pull(&self, request: PullRequest) -> ImageLines {
        if request.image == "absent" {
            return Box::pin(stream::once(ready(Err(missing()))));
        }
        self.pulling.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&self.pulling));
        let hang = async move {
            let _counted = counted;
            std::future::pending().await
        };
        Box::pin(stream::once(ready(Ok(ImageLine::Progress(vec![])))).chain(stream::once(hang)))
    }

    fn load(&self, mut archive: Box<dyn Read + Send>) -> ImageLines {
        let loaded = Arc::clone(&self.loaded);
        Box::pin(stream::once(on_thread(move || {
            let mut all = vec![];
            let read = archive.read_to_end(&mut all).map_err(|error| error.kind());
            *loaded.lock().unwrap() = Some(read);
            match all.starts_with(b"bad") {
                true => Err(ImageRequestError::new(ImageErrorKind::Invalid, "this is not an image archive")),
                false => Ok(ImageLine::Kept(all.len())),
            }
        })))
    }

    /// `damaged` fails after a part of the archive was written.
    fn save(&self, images: Vec<String>, mut archive: Box<dyn Write + Send>) -> ImageFuture<()> {
        on_thread(move || match images[0].as_str() {
            "absent" => Err(missing()),
            name => {
                // More than is buffered: a part has been read when it ends.
                for _ in 0..16 {
                    archive.write_all(&vec![b'x'; 1 << 16]).unwrap();
                }
                archive.flush().unwrap();
                if name == "damaged" { Err(ImageRequestError::new(ImageErrorKind::Failed, "damaged")) } else { Ok(()) }
            }
        })
    }

    fn remove(&self, images: Vec<String>, _: bool) -> ImageLines {
        let failed = ImageRequestError::new(ImageErrorKind::Failed, "the disk");
        Box::pin(stream::iter([Ok(ImageLine::Removed(images)), Err(failed)]))
    }

    fn prune(&self) -> ImageLines {
        Box::pin(stream::once(ready(Ok(ImageLine::Freed(FreedContent::default())))))
    }

    fn pull_amount(&self, image: &str) -> Option<PullAmount> {
        (image == "slow:1").then_some(PullAmount { received: 5, size: 10 })
    }
}

fn with(images: &Arc<TestImages>) -> TestServer {
    start_with_images("http://127.0.0.1:1", vec![], false, Ok(Arc::<TestImages>::clone(images)))
}

async fn until(mut done: impl FnMut() -> bool) {
    let waited = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("in time");
}

/// A request whose client keeps its connection, and has read the beginning of the response.
async fn open_pull(server: &TestServer) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let body = r#"{"image": "slow"}"#;
    let head = format!("POST /podwright/v1/images/pull HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut response = vec![0; 4096];
    let size = stream.read(&mut response).await.unwrap();
    (stream, String::from_utf8_lossy(&response[..size]).into_owned())
}

#[tokio::test]
async fn errors_have_a_status_code_at_first_and_are_the_last_line_later() {
    let server = with(&Arc::default());
    assert_eq!(server.get("/podwright/v1/images").await.1["images"], json!([]));
    let (code, status) = server.json("POST /podwright/v1/images/pull", &json!({"image": "absent"})).await;
    assert_eq!(
        (code, &status["message"], &status["reason"]),
        (404, &json!("image a does not exist"), &json!("NotFound"))
    );
    let (code, text) = server.send("POST /podwright/v1/images/remove", r#"{"images": ["a"]}"#).await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((code, &lines[0]["removed"], &lines[1]["error"]["code"]), (200, &json!(["a"]), &json!(500)), "{text}");
    let (code, status) = server.json("POST /podwright/v1/images/pull", &json!({"image": "a", "passwort": "x"})).await;
    assert!(code == 400 && status["message"].as_str().unwrap().contains("passwort"), "{status}");
    let elsewhere = start();
    let (code, status) = elsewhere.json("POST /podwright/v1/images/prune", &json!({})).await;
    assert_eq!((code, &status["message"]), (501, &json!("use crictl")));
    assert_eq!(elsewhere.get("/podwright/v1/pulls").await.1, json!({"pulls": []}));
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_pull_and_the_number_of_transfers_is_limited() {
    let images = Arc::<TestImages>::default();
    let server = with(&images);
    let mut held = vec![];
    for _ in 0..TRANSFERS_MAX {
        let (stream, response) = open_pull(&server).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        held.push(stream);
    }
    assert_eq!(images.pulling.load(Ordering::SeqCst), TRANSFERS_MAX);
    let (_, refused) = open_pull(&server).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("too many transfers"), "{refused}");
    assert_eq!(server.get("/podwright/v1/images").await.0, 200, "short requests are still served");
    held.clear();
    until(|| images.pulling.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn an_archive_is_read_while_it_is_sent_and_a_cut_one_is_not_taken_for_whole() {
    let images = Arc::<TestImages>::default();
    let server = with(&images);
    // Larger than any other body may be.
    let (code, text) = server.send("POST /podwright/v1/images/load", &"y".repeat(5 << 20)).await;
    assert_eq!((code, text), (200, format!("{{\"kept\":{}}}\n", 5 << 20)));
    let (code, text) = server.send("POST /podwright/v1/images/load", "bad").await;
    assert!(code == 400 && text.contains("this is not an image archive"), "{code} {text}");
    *images.loaded.lock().unwrap() = None;
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let head = "POST /podwright/v1/images/load HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf";
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    until(|| images.loaded.lock().unwrap().is_some()).await;
    assert_eq!(images.loaded.lock().unwrap().take(), Some(Err(std::io::ErrorKind::UnexpectedEof)));
}

#[tokio::test]
async fn an_archive_that_fails_has_no_regular_end() {
    let server = with(&Arc::default());
    let (code, body) = server.send("POST /podwright/v1/images/save", r#"{"images": ["a"]}"#).await;
    assert_eq!((code, body.len()), (200, 1 << 20));
    assert_eq!(server.send("POST /podwright/v1/images/save", r#"{"images": ["absent"]}"#).await.0, 404);
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let body = r#"{"images": ["damaged"]}"#;
    let head = format!("POST /podwright/v1/images/save HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut response = vec![];
    let _ = stream.read_to_end(&mut response).await;
    assert!(!response.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&response[response.len() - 20..]));
}

#[tokio::test]
async fn an_archive_that_fails_ends_with_its_error_for_a_client_that_reads_it() {
    let server = with(&Arc::default());
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    let body = r#"{"images": ["damaged"]}"#;
    let head = format!(
        "POST /podwright/v1/images/save HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut response = vec![];
    let _ = stream.read_to_end(&mut response).await;
    let end = String::from_utf8_lossy(&response[response.len() - 40..]).into_owned();
    assert!(end.ends_with("0\r\npodwright-error: damaged\r\n\r\n"), "{end:?}");
}

#[tokio::test]
async fn the_pulls_that_containers_wait_for_are_listed() {
    let server = with(&Arc::default());
    let container = |name: &str, image: &str| json!({"name": name, "image": image});
    let status = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "u"},
        "spec": {"containers": [container("a", "slow:1"), container("b", "slow:1"), container("c", "other:1")]},
        "status": {"containerStatuses": [
            status("a", json!({"waiting": {"reason": "ContainerCreating"}})),
            status("b", json!({"running": {}})),
            status("c", json!({"waiting": {"reason": "ContainerCreating"}}))]},
    }))
    .unwrap();
    server.feed.put_object(Arc::new(pod), Source::File, None);
    let expected =
        json!([{"namespace": "default", "pod": "web", "container": "a", "image": "slow:1", "received": 5, "size": 10}]);
    assert_eq!(server.get("/podwright/v1/pulls").await.1["pulls"], expected);
}
