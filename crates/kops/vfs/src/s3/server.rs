//! Sends requests to an S3 server: signs them, retries them where safe, and bounds the answers.

use std::{
    fs::File,
    io::{Seek as _, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use aws::{Source, StaticKey};
use bytes::Bytes;
use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{
    google,
    location::{Address, BucketLocation},
    response,
};
use crate::{body, error::Error};

/// The number of attempts before the last answer is returned.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The time limit for an answer read into memory, and for a pause within any other answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const REGION: &str = "x-amz-bucket-region";
/// A request to the server.
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    /// The object's name in the store, for errors.
    pub(super) name: &'a str,
    pub(super) method: Method,
    /// The object's key; empty for the bucket.
    pub(super) key: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) payload: Payload<'a>,
}

impl Call<'_> {
    /// Returns the error for a response that cannot be used.
    pub(super) fn invalid(&self, cause: &str) -> Error {
        Error::Response {
            operation: self.operation,
            name: self.name.to_owned(),
            status: "nonsense".to_owned(),
            cause: cause.to_owned(),
        }
    }
}

/// The body of a request.
pub(super) enum Payload<'a> {
    Bytes { content: Bytes, sum: String },
    File { path: &'a Path, length: u64, sum: String },
}

impl Payload<'_> {
    pub(super) fn bytes(content: &[u8]) -> Self {
        Self::Bytes { content: Bytes::copy_from_slice(content), sum: body::sum_of(content) }
    }

    fn sum(&self) -> &str {
        let (Self::Bytes { sum, .. } | Self::File { sum, .. }) = self;
        sum
    }

    fn length(&self) -> u64 {
        match self {
            Self::Bytes { content, .. } => content.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    fn body(&self) -> std::io::Result<client::Body> {
        match self {
            Self::Bytes { content, .. } => Ok(client::full(content.clone())),
            // Reading blocks only the store's own thread.
            Self::File { path, .. } => Ok(body::of_file(File::open(path)?)),
        }
    }
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::bytes(&[])
    }
}

/// The destination of a successful answer's body, and its largest length.
pub(super) enum Sink<'a> {
    Memory(usize),
    File(&'a mut File, u64),
}

/// A response of the server.
pub(super) struct ServerResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Empty if the body was written to a file.
    pub(super) body: Bytes,
    /// `true` if an earlier attempt may have succeeded although its answer was lost.
    pub(super) is_repeated: bool,
}

impl ServerResponse {
    fn code(&self) -> String {
        response::error_of(&self.body).0
    }

    /// Reports whether the object does not exist. A missing bucket is another error.
    pub(super) fn is_absent(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.code() == "NoSuchKey"
    }

    /// Reports whether the object has changed since the version of the request.
    pub(super) fn is_conflict(&self) -> bool {
        [StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT].contains(&self.status)
    }

    /// Reports whether a retry may succeed.
    fn is_retryable(&self) -> bool {
        let code = self.code();
        matches!(self.status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
            || ["ConditionalRequestConflict", "RequestTimeout"].contains(&code.as_str())
    }

    /// Returns an error unless the status is a success.
    pub(super) fn succeeded(&self, call: &Call<'_>) -> Result<(), Error> {
        if self.status.is_success() {
            return Ok(());
        }
        let (code, message) = response::error_of(&self.body);
        let cause = match (self.status.as_u16(), code.as_str()) {
            (300..400, _) => {
                "it redirects to another server, which gets no credentials; check the endpoint and the region"
                    .to_owned()
            }
            (_, "") => "it gives no reason".to_owned(),
            (403, _) => format!("{code}: {message}; check the credentials and their rights"),
            _ => format!("{code}: {message}"),
        };
        let status = self.status.as_u16().to_string();
        let name = call.name.to_owned();
        Err(Error::Response { operation: call.operation, name, status, cause })
    }
}

/// A client of a bucket's server.
#[derive(Debug)]
pub(super) struct Server {
    location: BucketLocation,
    credentials: Source,
    connection: Mutex<Arc<Connection>>,
}

struct Connection {
    region: String,
    address: Address,
    transport: HttpTransport,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

fn connection(location: &BucketLocation, region: &str) -> Result<Connection, Error> {
    let address = location.address(region);
    let failed = |cause: String| Error::Server { address: address.server.clone(), cause };
    let tls = if address.server.starts_with("http:") {
        ClientTls::anyone()
    } else {
        aws::trust(location.authorities.as_deref()).map_err(|error| failed(error.to_string()))?
    };
    let transport = HttpTransport::reused_http1(&address.server, tls);
    let transport = transport.map_err(|error| failed(error.to_string()))?;
    Ok(Connection { region: region.to_owned(), address, transport })
}

impl Server {
    pub(super) fn new(location: BucketLocation) -> Result<Self, Error> {
        let connection = Mutex::new(Arc::new(connection(&location, &location.region)?));
        let key = location.own.as_ref().map(|own| StaticKey {
            key: own.key.clone(),
            secret: own.secret.clone(),
            from: "S3_ACCESS_KEY_ID",
        });
        let credentials = Source::new(&location.region, location.authorities.clone(), key);
        Ok(Self { credentials, connection, location })
    }

    /// Reports whether the server is AWS itself, so that all of its features may be used.
    pub(super) fn is_aws(&self) -> bool {
        self.location.own.is_none()
    }

    /// Reports whether the server is Google's Cloud Storage.
    pub(super) fn is_google(&self) -> bool {
        self.location.own.as_ref().is_some_and(|own| own.is_google)
    }

    /// Reports whether the server is known to honour conditions of writes.
    pub(super) fn has_conditions(&self) -> bool {
        self.is_aws() || self.is_google()
    }

    fn connection(&self) -> Arc<Connection> {
        self.connection.lock().clone()
    }

    /// Sends a request, with retries where they may help. An error status is returned as an answer.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        mut to: Sink<'_>,
    ) -> Result<ServerResponse, Error> {
        let mut backoff = rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut attempt, mut has_moved, mut is_repeated) = (1, false, false);
        loop {
            let result = self.send_once(call, &mut to).await;
            let last = attempt == ATTEMPTS;
            match result {
                Ok(response) if !has_moved && self.adopt_region(&response)? => {
                    has_moved = true;
                    continue;
                }
                Ok(response) if last || !response.is_retryable() => {
                    return Ok(ServerResponse { is_repeated, ..response });
                }
                Err(error) if last || !error.is_retryable() => return Err(error),
                _ => {}
            }
            (attempt, is_repeated) = (attempt + 1, true);
            sleep(backoff.next(rt::random())).await;
        }
    }

    /// Reports whether the answer names another region for the bucket. Later requests go there.
    fn adopt_region(&self, response: &ServerResponse) -> Result<bool, Error> {
        if !matches!(response.status.as_u16(), 300..=400) {
            return Ok(false);
        }
        let region_header = response.headers.get(REGION).and_then(|region| region.to_str().ok());
        let own = self.connection();
        match region_header.filter(|region| aws::is_region(region) && *region != own.region) {
            None => Ok(false),
            Some(region) => {
                let found = Arc::new(connection(&self.location, region)?);
                *self.connection.lock() = found;
                Ok(true)
            }
        }
    }

    async fn send_once(&self, call: &Call<'_>, to: &mut Sink<'_>) -> Result<ServerResponse, Error> {
        let connection = self.connection();
        let request = self.request(call, &connection).await?;
        let failed =
            |source| Error::Sent { operation: call.operation, name: call.name.to_owned(), source };
        let late = || Error::Late {
            operation: call.operation,
            name: call.name.to_owned(),
            server: connection.address.server.clone(),
        };
        // Allow a large body more time.
        let limit = TIMEOUT + Duration::from_secs(call.payload.length() >> 20);
        let response = timeout(limit, connection.transport.send(request)).await;
        let response = response.map_err(|_| late())?.map_err(failed)?;
        let (head, body) = response.into_parts();
        let respond = |body| ServerResponse {
            status: head.status,
            headers: head.headers.clone(),
            body,
            is_repeated: false,
        };
        let most = match to {
            Sink::File(file, most) if head.status == StatusCode::OK => {
                let response = Response::from_parts(head.clone(), body);
                save(call, response, file, *most, late).await?;
                return Ok(respond(Bytes::new()));
            }
            Sink::Memory(most) if head.status.is_success() => *most,
            _ => response::LARGEST_DOCUMENT,
        };
        let length = length(&head.headers);
        let body = timeout(TIMEOUT, client::read(call.name, body, most)).await;
        let body = body.map_err(|_| late())?.map_err(|error| match error {
            client::Error::TooLarge { .. } => {
                Error::TooMuch { name: call.name.to_owned(), most, unit: "bytes" }
            }
            error => failed(error),
        })?;
        // If the connection's end marks the answer's end, a truncated answer looks complete.
        if call.method == Method::GET && !call.key.is_empty() && length != Some(body.len() as u64) {
            return Err(call.invalid("its length is missing, or it was truncated"));
        }
        Ok(respond(body))
    }

    async fn request(
        &self,
        call: &Call<'_>,
        connection: &Connection,
    ) -> Result<Request<client::Body>, Error> {
        let failed =
            |cause: String| Error::Server { address: connection.address.server.clone(), cause };
        let key = api_meta::percent_encode(&call.key, b"-._~/");
        let pairs = call.query.iter();
        let pairs = pairs.map(|(name, value)| format!("{name}={}", client::escape(value)));
        let query = pairs.collect::<Vec<_>>().join("&");
        let separator = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}/{key}{separator}{query}", connection.address.path);
        let mut request = Request::builder().method(&call.method).uri(&uri);
        request = request.header(header::HOST, &connection.address.host);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if call.method == Method::PUT {
            request = request.header(header::CONTENT_LENGTH, call.payload.length());
        }
        let body = call.payload.body().map_err(Error::io("reading the file for", call.name))?;
        let mut request = request.body(body).map_err(|error| failed(error.to_string()))?;
        if let Some(own) = self.location.own.as_ref().filter(|own| own.is_google) {
            let path = format!("{}/{}", connection.address.path, call.key);
            google::sign(&mut request, &path, &call.query, call.payload.sum(), own)
                .map_err(|error| failed(error.to_string()))?;
            return Ok(request);
        }
        let credentials = self.credentials.current().await?;
        aws::sign(&mut request, call.payload.sum(), &connection.region, "s3", credentials)
            .map_err(|error| failed(error.to_string()))?;
        Ok(request)
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Writes an answer's body to the beginning of a file.
async fn save(
    call: &Call<'_>,
    response: Response<client::Body>,
    file: &mut File,
    most: u64,
    late: impl Fn() -> Error,
) -> Result<(), Error> {
    let failed = || Error::io("copying", call.name);
    let length = length(response.headers());
    let length = length.ok_or_else(|| call.invalid("its length is missing"))?;
    if length > most {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        return Err(Error::TooMuch { name: call.name.to_owned(), most, unit: "bytes" });
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed())?;
    let (mut body, mut written) = (response.into_body(), 0);
    while let Some(frame) = timeout(TIMEOUT, body.frame()).await.map_err(|_| late())? {
        let frame = frame.map_err(|source| Error::Sent {
            operation: call.operation,
            name: call.name.to_owned(),
            source: client::Error::Transport {
                operation: "reading the answer to",
                target: call.name.to_owned(),
                source,
            },
        })?;
        if let Ok(data) = frame.into_data() {
            written += data.len() as u64;
            file.write_all(&data).map_err(failed())?;
        }
    }
    if written == length {
        file.sync_all().map_err(failed())
    } else {
        Err(call.invalid("it was truncated"))
    }
}
