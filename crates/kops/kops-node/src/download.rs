//! Downloads of programs by HTTP. Whoever answers is not trusted: the caller compares the content with its hash.

use std::{fs, io, io::Write as _, path::Path, time::Duration};

use client::{ClientTls, HttpTransport, Transport as _};
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

/// The largest program.
pub(crate) const MAX_FILE: u64 = 4 << 30;
/// The largest number of redirections, of which `dl.k8s.io` and GitHub need one or two.
const MAX_REDIRECTIONS: usize = 5;
/// The time limit for an answer to begin, and for a pause within it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An error of getting a program.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("the address is neither a file:///PATH nor an http or https address without a user")]
    Address,
    #[error(transparent)]
    Beneath(#[from] sys::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    File(#[from] kops_store::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error(transparent)]
    Trust(#[from] client::TlsError),
    #[error("the server answers with status {0}")]
    Status(StatusCode),
    #[error("the server redirects more than {MAX_REDIRECTIONS} times, or without an address")]
    Redirections,
    #[error("the server sent nothing for {} seconds", TIMEOUT.as_secs())]
    Late,
    #[error("the file has more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("the file has been cut")]
    Cut,
    #[error("the file's hash differs from the one in the node configuration")]
    Hash,
}

/// Downloads a file. Redirections are followed.
pub(crate) async fn download(url: &str, to: &Path) -> Result<(), DownloadError> {
    let mut url = url.to_owned();
    for _ in 0..=MAX_REDIRECTIONS {
        let response = get(&url).await?;
        if response.status() == StatusCode::OK {
            return save(response, to).await;
        }
        if !response.status().is_redirection() {
            return Err(DownloadError::Status(response.status()));
        }
        let location = response.headers().get(header::LOCATION).and_then(|it| it.to_str().ok());
        let location = location.ok_or(DownloadError::Redirections)?;
        url = match location.strip_prefix('/').filter(|rest| !rest.starts_with('/')) {
            Some(path) => format!("{}/{path}", server(&url)?.0),
            None => location.to_owned(),
        };
    }
    Err(DownloadError::Redirections)
}

/// Returns the server of an address, and the address.
fn server(url: &str) -> Result<(String, Uri), DownloadError> {
    let uri: Uri = url.parse().map_err(|_| DownloadError::Address)?;
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    match uri.scheme_str() {
        Some(scheme @ ("http" | "https")) if !authority.contains('@') => {
            Ok((format!("{scheme}://{authority}"), uri))
        }
        _ => Err(DownloadError::Address),
    }
}

async fn get(url: &str) -> Result<Response<client::Body>, DownloadError> {
    let (server, uri) = server(url)?;
    let tls = if server.starts_with("http:") { ClientTls::anyone() } else { aws::trust(None)? };
    let transport = HttpTransport::reused_http1(&server, tls)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let request = Request::get(path).header(header::HOST, host).body(client::full(""));
    let request = request.map_err(|_| DownloadError::Address)?;
    Ok(timeout(TIMEOUT, transport.send(request)).await.map_err(|_| DownloadError::Late)??)
}

/// Writes an answer's body to a file.
async fn save(response: Response<client::Body>, to: &Path) -> Result<(), DownloadError> {
    let length = response.headers().get(header::CONTENT_LENGTH).cloned();
    let length: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length| length > MAX_FILE) {
        return Err(DownloadError::TooLarge);
    }
    let mut file = fs::File::create(to)?;
    let (mut body, mut written) = (response.into_body(), 0);
    while let Some(frame) = timeout(TIMEOUT, body.frame()).await.map_err(|_| DownloadError::Late)? {
        let frame = frame.map_err(|_| DownloadError::Cut)?;
        let Ok(data) = frame.into_data() else { continue };
        written += data.len() as u64;
        if written > MAX_FILE {
            return Err(DownloadError::TooLarge);
        }
        file.write_all(&data)?;
    }
    if length.is_some_and(|length| length != written) {
        return Err(DownloadError::Cut);
    }
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;

    /// Functions that make an answer from the server's address.
    type Answers = Vec<Box<dyn Fn(&str) -> String + Send>>;

    /// Serves one answer for each connection, and returns the server's address.
    fn serve(answers: Answers) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shown = address.clone();
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(answer(&shown).as_bytes());
            }
        });
        address
    }

    fn body(text: &str, length: usize) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}")
    }

    fn redirect(to: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    }

    #[tokio::test]
    async fn follows_redirections_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let server = serve(vec![
            Box::new(|_| redirect("/b")),
            Box::new(|server| redirect(&format!("{server}/c"))),
            Box::new(|_| body("program", 7)),
        ]);
        download(&format!("{server}/a"), &to).await.unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "program");
    }

    #[tokio::test]
    async fn rejects_hostile_answers() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let get = async |answers: Answers| {
            let server = serve(answers);
            download(&format!("{server}/a"), &to).await.unwrap_err()
        };
        for location in ["file:///etc/shadow", "//evil", "http://user@127.0.0.1/", "ftp://a/b"] {
            let error = get(vec![Box::new(move |_| redirect(location))]).await;
            assert!(matches!(error, DownloadError::Address), "{location}: {error}");
        }
        let round: Answers = (0..6).map(|_| Box::new(|_: &str| redirect("/a")) as _).collect();
        assert!(matches!(get(round).await, DownloadError::Redirections));
        let error = get(vec![Box::new(|_| body("pro", 7))]).await;
        assert!(matches!(error, DownloadError::Cut), "{error}");
        let error = get(vec![Box::new(|_| body("", 5 << 30))]).await;
        assert!(matches!(error, DownloadError::TooLarge), "{error}");
        let none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        let error = get(vec![Box::new(|_| none.to_owned())]).await;
        assert!(matches!(error, DownloadError::Status(StatusCode::NOT_FOUND)), "{error}");
        for url in ["", "kubelet", "http://", "https://user:key@example.com/a", "ftp://a/b"] {
            let error = download(url, &to).await.unwrap_err();
            assert!(matches!(error, DownloadError::Address), "{url}: {error}");
        }
    }
}
