use std::io::Write as _;

use flate2::write::ZlibEncoder;
use proptest::prelude::*;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use super::*;
use crate::streaming::streams::OpenedStream;

/// Frames of a client, with headers compressed as Go's clients do.
pub(in crate::streaming) struct ClientFrames {
    headers: Compress,
    pub(in crate::streaming) bytes: Vec<u8>,
}

impl ClientFrames {
    pub(in crate::streaming) fn new() -> Self {
        let mut headers = Compress::new(Compression::best(), true);
        headers.set_dictionary(HEADER_DICTIONARY).unwrap();
        Self { headers, bytes: vec![] }
    }

    pub(in crate::streaming) fn control(mut self, kind: u16, flags: u8, payload: &[u8]) -> Self {
        self.bytes.put_u32(0x8003_0000 | u32::from(kind));
        self.bytes.put_u8(flags);
        self.bytes.put_uint(payload.len() as u64, 3);
        self.bytes.put_slice(payload);
        self
    }

    pub(in crate::streaming) fn open(mut self, stream: u32, headers: &[(&str, &str)]) -> Self {
        let mut plain = vec![];
        plain.put_u32(headers.len() as u32);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(text.len() as u32);
            plain.put_slice(text.as_bytes());
        }
        let mut payload = vec![];
        payload.put_u32(stream);
        payload.put_slice(&[0; 6]);
        let mut block = Vec::with_capacity(plain.len() + 100);
        self.headers.compress_vec(&plain, &mut block, FlushCompress::Sync).unwrap();
        payload.extend(block);
        self.control(SYN_STREAM, 0, &payload)
    }

    pub(in crate::streaming) fn data(mut self, stream: u32, data: &[u8], last: bool) -> Self {
        self.bytes.put_u32(stream);
        self.bytes.put_u8(u8::from(last));
        self.bytes.put_uint(data.len() as u64, 3);
        self.bytes.put_slice(data);
        self
    }
}

async fn read_all(bytes: &[u8]) -> Result<Vec<InFrame>, SpdyError> {
    let (mut reader, mut frames) = (FrameReader::new(bytes), vec![]);
    while let Some(frame) = reader.next().await? {
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn the_dictionary_is_that_of_the_specification() {
    // The checksum that Go's compressor writes into the header of its first block.
    let mut headers = Compress::new(Compression::best(), true);
    assert_eq!(HEADER_DICTIONARY.len(), 1423);
    assert_eq!(headers.set_dictionary(HEADER_DICTIONARY).unwrap(), 0xe3c6_a7c2);
}

#[tokio::test]
async fn headers_of_several_streams_are_read_with_and_without_the_dictionary() {
    let client =
        ClientFrames::new().open(1, &[("streamtype", "error")]).open(3, &[("streamtype", "stdin"), ("port", "80")]);
    let frames = read_all(&client.bytes).await.unwrap();
    let headers = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let first = InFrame::Open { stream: 1, headers: headers(&[("streamtype", "error")]), last: false };
    let second = InFrame::Open { stream: 3, headers: headers(&[("streamtype", "stdin"), ("port", "80")]), last: false };
    assert_eq!(frames, [first, second]);

    let mut plain = ClientFrames { headers: Compress::new(Compression::fast(), true), bytes: vec![] };
    plain = plain.open(1, &[("StreamType", "data")]);
    let headers = headers(&[("streamtype", "data")]);
    assert_eq!(read_all(&plain.bytes).await.unwrap(), [InFrame::Open { stream: 1, headers, last: false }]);
}

#[tokio::test]
async fn a_long_data_frame_is_delivered_in_chunks() {
    let data = vec![7; 100_000];
    let frames = read_all(&ClientFrames::new().data(5, &data, true).data(5, b"", true).bytes).await.unwrap();
    let (mut received, count) = (vec![], frames.len());
    for (index, frame) in frames.into_iter().enumerate() {
        let InFrame::Data { stream: 5, data, last } = frame else { panic!("{frame:?}") };
        assert!(data.len() <= DATA_CHUNK);
        assert_eq!(last, index >= count - 2, "only the last part ends the stream");
        received.extend(data);
    }
    assert_eq!(received, data);
}

#[tokio::test]
async fn hostile_frames_are_refused() {
    let refused = async |client: ClientFrames| read_all(&client.bytes).await.unwrap_err();
    let long = ClientFrames::new().control(SYN_STREAM, 0, &vec![0; CONTROL_FRAME_MAX + 1]);
    assert!(matches!(refused(long).await, SpdyError::TooLong(_)));
    assert!(matches!(refused(ClientFrames::new().control(PING, 0, b"abc")).await, SpdyError::TooShort));
    assert!(matches!(refused(ClientFrames::new().control(SYN_STREAM, 0, &[0; 9])).await, SpdyError::TooShort));
    let no_zlib = ClientFrames::new().control(SYN_STREAM, 0, b"\0\0\0\x01\0\0\0\0\0\0garbage");
    assert!(matches!(refused(no_zlib).await, SpdyError::Compression { stream: 1, .. }));

    // 10 MB of zeros in 10 KB.
    let mut bomb = ZlibEncoder::new(vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0], Compression::best());
    bomb.write_all(&vec![0; 10 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < CONTROL_FRAME_MAX);
    assert!(matches!(refused(ClientFrames::new().control(SYN_STREAM, 0, &bomb)).await, SpdyError::Headers(1)));

    let duplicate = ClientFrames::new().open(1, &[("port", "1"), ("Port", "2")]);
    assert!(matches!(refused(duplicate).await, SpdyError::Headers(1)));
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert!(read_all(http2).await.is_err());
}

/// Serves a connection with a session that hands its streams to the test.
fn serve(streams_max: usize, idle: std::time::Duration) -> (DuplexStream, mpsc::UnboundedReceiver<OpenedStream>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    let (taken, streams) = mpsc::unbounded_channel();
    podwright_tasks::spawn("spdy-test", async move {
        let session = async |mut opened: mpsc::Receiver<OpenedStream>| {
            while let Some(stream) = opened.recv().await {
                let _ = taken.send(stream);
            }
        };
        serve_spdy(server, streams_max, idle, session).await
    });
    (client, streams)
}

async fn next_frame(client: &mut DuplexStream) -> Vec<u8> {
    let mut head = [0; 8];
    client.read_exact(&mut head).await.unwrap();
    let mut frame = head.to_vec();
    frame.resize(8 + usize::from(head[6]) * 256 + usize::from(head[7]), 0);
    client.read_exact(&mut frame[8..]).await.unwrap();
    frame
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

#[tokio::test]
async fn streams_over_the_limit_are_refused_until_others_end() {
    let (mut client, mut streams) = serve(2, HOUR);
    let frames = ClientFrames::new().open(1, &[]).open(3, &[]).open(5, &[]);
    client.write_all(&frames.bytes).await.unwrap();
    let first = streams.recv().await.unwrap();
    let second = streams.recv().await.unwrap();
    assert_eq!((first.id, second.id), (1, 3));
    for kind in [SYN_REPLY, SYN_REPLY, RST_STREAM] {
        assert_eq!(next_frame(&mut client).await[..4], (0x8003_0000 | u32::from(kind)).to_be_bytes());
    }
    drop(first);
    let mut frames = ClientFrames { bytes: vec![], ..frames }.open(7, &[]);
    client.write_all(&frames.bytes).await.unwrap();
    assert_eq!(streams.recv().await.unwrap().id, 7, "the client has not closed the stream that we have dropped");

    frames = ClientFrames { bytes: vec![], ..frames }.open(7, &[]);
    client.write_all(&frames.bytes).await.unwrap();
    assert!(streams.recv().await.is_none(), "an id that was used ends the connection");
}

#[tokio::test]
async fn a_reset_cancels_a_stream_and_its_regular_end_does_not() {
    let (mut client, mut streams) = serve(8, HOUR);
    let frames = ClientFrames::new().open(1, &[]).open(3, &[]).data(1, b"abc", true);
    client.write_all(&frames.control(RST_STREAM, 0, &[0, 0, 0, 3, 0, 0, 0, 5]).bytes).await.unwrap();
    let (mut first, mut second) = (streams.recv().await.unwrap(), streams.recv().await.unwrap());
    assert_eq!(first.input.next().await.as_deref(), Some(&b"abc"[..]));
    assert_eq!(first.input.next().await, None);
    second.reset.cancelled().await;
    assert_eq!(second.input.next().await, None);
    assert!(!first.reset.is_cancelled());
    // A client that has closed its half may give up the other one as well.
    client.write_all(&ClientFrames::new().control(RST_STREAM, 0, &[0, 0, 0, 1, 0, 0, 0, 5]).bytes).await.unwrap();
    tokio::time::timeout(HOUR / 360, first.reset.cancelled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_session_sends_last_reaches_a_slow_client() {
    let (mut client, server) = tokio::io::duplex(64);
    let session = async |mut opened: mpsc::Receiver<OpenedStream>| {
        let stream = opened.recv().await.unwrap();
        for _ in 0..20 {
            stream.output.write(Bytes::from(vec![1; 1000])).await.unwrap();
        }
        stream.output.finish().await.unwrap();
    };
    let served = podwright_tasks::spawn("spdy-test", async move { serve_spdy(server, 8, HOUR, session).await });
    client.write_all(&ClientFrames::new().open(1, &[]).bytes).await.unwrap();
    let (mut data, mut frames) = (0, 0);
    loop {
        let frame = next_frame(&mut client).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        frames += 1;
        match frame[..4] {
            [0, 0, 0, 1] => data += frame.len() - 8,
            [0x80, 3, 0, 7] => break,
            _ => {}
        }
    }
    assert_eq!((data, frames), (20_000, 1 + 20 + 1 + 1), "the reply, the data, its end, and the end of the connection");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn pings_are_answered_and_a_disconnect_ends_the_session() {
    let (mut client, mut streams) = serve(8, HOUR);
    client.write_all(&ClientFrames::new().control(PING, 0, &[0, 0, 0, 9]).bytes).await.unwrap();
    assert_eq!(next_frame(&mut client).await, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9]);
    drop(client);
    assert!(streams.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let (mut client, mut streams) = serve(8, HOUR);
    let frames = ClientFrames::new().open(1, &[]);
    client.write_all(&frames.bytes).await.unwrap();
    let _stream = streams.recv().await.unwrap();
    tokio::time::sleep(HOUR - std::time::Duration::from_secs(1)).await;
    client.write_all(&ClientFrames::new().control(PING, 0, &[0, 0, 0, 9]).bytes).await.unwrap();
    tokio::time::sleep(HOUR - std::time::Duration::from_secs(1)).await;
    assert!(streams.try_recv().is_err() && !streams.is_closed(), "the ping counts");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(streams.recv().await.is_none());
}

/// A stream whose data no one reads, and more data than is kept for it.
async fn blocked(client: &mut DuplexStream, streams: &mut mpsc::UnboundedReceiver<OpenedStream>) -> OpenedStream {
    let frames = (0..10).fold(ClientFrames::new().open(1, &[]), |frames, _| frames.data(1, b"data", false));
    client.write_all(&frames.bytes).await.unwrap();
    streams.recv().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_data_is_not_read_ends_the_session() {
    let (mut client, mut streams) = serve(8, HOUR);
    let _stream = blocked(&mut client, &mut streams).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(streams.try_recv().is_err() && !streams.is_closed(), "the client is there");
    drop(client);
    tokio::time::timeout(std::time::Duration::from_secs(5), streams.recv()).await.expect("not noticed");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_do_not_keep_an_idle_connection() {
    let (mut client, mut streams) = serve(8, HOUR);
    let _stream = blocked(&mut client, &mut streams).await;
    next_frame(&mut client).await;
    assert_eq!(next_frame(&mut client).await, [0x80, 3, 0, 6, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]);
    tokio::time::sleep(HOUR + std::time::Duration::from_secs(1)).await;
    assert!(streams.is_closed());
}

proptest! {
    #[test]
    fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2000), control in any::<bool>()) {
        let mut input = if control { vec![0x80, 3, 0, 1, 0, 0] } else { vec![] };
        input.extend(bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(read_all(&input));
    }
}
