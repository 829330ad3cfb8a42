//! Which protocol a client's request asks for, and the headers of the response.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::remote_command::CommandProtocol;
use super::token::StreamRequest;
use super::websocket::ChannelCodec;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    SpdyCommand(CommandProtocol),
    SpdyPortForward,
    WebSocketCommand(ChannelCodec, CommandProtocol),
    WebSocketPortForward(ChannelCodec),
    /// SPDY in the messages of a WebSocket.
    TunneledPortForward,
}

/// An HTTP error.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), headers: vec![] }
    }
}

type Agreed = (Handshake, Vec<(HeaderName, HeaderValue)>);

/// Chooses the protocol: the first of the client's that is known (httpstream: `Handshake`, wsstream: `handshake`).
pub(super) fn negotiate(headers: &HeaderMap, request: &StreamRequest) -> Result<Agreed, Refused> {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let connection = values(headers, &CONNECTION).any(|value| value.eq_ignore_ascii_case("upgrade"));
    let command = !matches!(request, StreamRequest::PortForward(_));
    match upgrade.to_ascii_lowercase().as_str() {
        "websocket" if connection => negotiate_websocket(headers, command),
        "spdy/3.1" if connection => negotiate_spdy(headers, command),
        _ => Err(Refused::new(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: missing upgrade headers in request: SPDY/3.1 and websocket are supported",
        )),
    }
}

fn negotiate_spdy(headers: &HeaderMap, command: bool) -> Result<Agreed, Refused> {
    let known: &[(&str, Handshake)] = if command { SPDY_COMMAND } else { SPDY_PORT_FORWARD };
    let asked: Vec<&str> = values(headers, &PROTOCOL_VERSION).collect();
    if asked.is_empty() {
        let message = "unable to upgrade: header X-Stream-Protocol-Version does not exist in request";
        return Err(Refused::new(StatusCode::BAD_REQUEST, message));
    }
    let Some((name, handshake)) = first_known(&asked, known) else {
        let accepted = known.iter().map(|(name, _)| (ACCEPTED_VERSIONS, HeaderValue::from_static(name)));
        let message = format!("unable to upgrade: unable to negotiate protocol: client supports {asked:?}");
        return Err(Refused { headers: accepted.collect(), ..Refused::new(StatusCode::FORBIDDEN, message) });
    };
    let headers =
        vec![(UPGRADE, HeaderValue::from_static("SPDY/3.1")), (PROTOCOL_VERSION, HeaderValue::from_static(name))];
    Ok((handshake, headers))
}

fn negotiate_websocket(headers: &HeaderMap, command: bool) -> Result<Agreed, Refused> {
    let bad = |message: &str| Refused::new(StatusCode::BAD_REQUEST, format!("unable to upgrade: {message}"));
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let headers = vec![(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))];
        return Err(Refused { headers, ..bad("only version 13 of the WebSocket protocol is supported") });
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
    let valid = |key: &&[u8]| BASE64_STANDARD.decode(key).is_ok_and(|key| key.len() == 16);
    let key = key.filter(valid).ok_or_else(|| bad("no valid Sec-WebSocket-Key"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key)).expect("base64");
    let mut response = vec![(UPGRADE, HeaderValue::from_static("websocket")), (SEC_WEBSOCKET_ACCEPT, accept)];
    let known: &[(&str, Handshake)] = if command { WEBSOCKET_COMMAND } else { WEBSOCKET_PORT_FORWARD };
    let asked: Vec<&str> = values(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
    if asked.is_empty() {
        let raw = ChannelCodec { base64: false, close_signal: false };
        let command = command.then_some(Handshake::WebSocketCommand(raw, CommandProtocol::V3));
        return Ok((command.unwrap_or(Handshake::WebSocketPortForward(raw)), response));
    }
    let Some((name, handshake)) = first_known(&asked, known) else {
        let supported: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let message = format!("requested protocol(s) are not supported: {asked:?}; supports {supported:?}");
        return Err(Refused::new(StatusCode::FORBIDDEN, message));
    };
    response.push((SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name)));
    Ok((handshake, response))
}

fn first_known(asked: &[&str], known: &[(&'static str, Handshake)]) -> Option<(&'static str, Handshake)> {
    asked.iter().find_map(|asked| known.iter().find(|(name, _)| name == asked)).copied()
}

/// The values of a header, over all its lines.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_VERSIONS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

const SPDY_COMMAND: &[(&str, Handshake)] = &[
    ("v4.channel.k8s.io", Handshake::SpdyCommand(CommandProtocol::V4)),
    ("v3.channel.k8s.io", Handshake::SpdyCommand(CommandProtocol::V3)),
    ("v2.channel.k8s.io", Handshake::SpdyCommand(CommandProtocol::V2)),
    ("channel.k8s.io", Handshake::SpdyCommand(CommandProtocol::V2)),
];
const SPDY_PORT_FORWARD: &[(&str, Handshake)] = &[("portforward.k8s.io", Handshake::SpdyPortForward)];

const BINARY: ChannelCodec = ChannelCodec { base64: false, close_signal: false };
const BASE64: ChannelCodec = ChannelCodec { base64: true, close_signal: false };
const CLOSING: ChannelCodec = ChannelCodec { base64: false, close_signal: true };

const WEBSOCKET_COMMAND: &[(&str, Handshake)] = &[
    ("v5.channel.k8s.io", Handshake::WebSocketCommand(CLOSING, CommandProtocol::V5)),
    ("v4.channel.k8s.io", Handshake::WebSocketCommand(BINARY, CommandProtocol::V4)),
    ("v4.base64.channel.k8s.io", Handshake::WebSocketCommand(BASE64, CommandProtocol::V4)),
    ("channel.k8s.io", Handshake::WebSocketCommand(BINARY, CommandProtocol::V3)),
    ("base64.channel.k8s.io", Handshake::WebSocketCommand(BASE64, CommandProtocol::V3)),
];
const WEBSOCKET_PORT_FORWARD: &[(&str, Handshake)] = &[
    ("SPDY/3.1+portforward.k8s.io", Handshake::TunneledPortForward),
    ("v4.channel.k8s.io", Handshake::WebSocketPortForward(BINARY)),
    ("v4.base64.channel.k8s.io", Handshake::WebSocketPortForward(BASE64)),
];
