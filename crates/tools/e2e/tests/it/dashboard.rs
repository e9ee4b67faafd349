//! `windlass dashboard`: who sees what, and a browser that clicks through it.

use std::path::{Path, PathBuf};

use e2e::{Background, Session, binary, shared};
use serde_json::{Value, json};

/// A Pod whose image does not exist.
const BROKEN: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"broken"},
    "spec":{"containers":[{"name":"app","image":"nowhere.invalid/missing:1"}]}}"#;

/// A running dashboard. Ends with this value.
struct Dashboard<'a> {
    s: &'a Session<'a>,
    _process: Background,
    /// The address with the key.
    entrance: String,
    /// The file of the cookies.
    jar: String,
}

impl<'a> Dashboard<'a> {
    fn start(s: &'a Session<'a>, kubeconfig: &Path, name: &str) -> Self {
        let (binary, file) = (binary().display().to_string(), kubeconfig.display().to_string());
        let args = ["dashboard", "--listen", "127.0.0.1:0", "--kubeconfig", &file];
        let mut process = Background::start(s.cluster.namespace.command(&binary, &args));
        let entrance = process.wait_for_line(|line| line.starts_with("http://"));
        let jar = s.cluster.directory.join(format!("{name}.cookies")).display().to_string();
        let dashboard = Self { s, _process: process, entrance, jar };
        assert!(dashboard.curl(&dashboard.entrance).contains("What does not run"));
        dashboard
    }

    fn address(&self) -> &str {
        self.entrance.split("/?key=").next().unwrap_or_default()
    }

    fn curl(&self, url: &str) -> String {
        self.s.on_node("curl", &["-sSL", "-b", &self.jar, "-c", &self.jar, url]).ok()
    }

    fn page(&self, path: &str) -> String {
        self.curl(&format!("{}{path}", self.address()))
    }
}

/// Writes a kubeconfig with a token.
fn kubeconfig_of(s: &Session<'_>, account: &str) -> PathBuf {
    let token = s.kubectl(&format!("create token {account}")).ok();
    let path = s.cluster.directory.join(format!("{account}.kubeconfig"));
    std::fs::copy(s.cluster.kubeconfig(), &path).unwrap();
    let file = path.display().to_string();
    let set = |line: &str| s.kubectl(&format!("--kubeconfig={file} config {line}")).ok();
    set(&format!("set-credentials {account} --token={}", token.trim()));
    set(&format!("set-context --current --user={account}"));
    path
}

#[test]
fn shows_causes_logs_and_only_what_the_user_may_see() {
    let s = shared("dashboard");
    s.deploy("web", "app:1", 1);
    s.apply(BROKEN);
    s.kubectl("create secret generic hidden --from-literal=password=hunter2").ok();
    s.kubectl("create serviceaccount looker").ok();
    s.kubectl("create rolebinding looker --clusterrole=view --serviceaccount=dashboard:looker")
        .ok();
    s.available("web");

    let admin = Dashboard::start(&s, &s.cluster.kubeconfig(), "admin");
    e2e::until("the cause of the broken Pod", || {
        let page = admin.page("/");
        let row = page.split("<tr>").find(|row| row.contains("dashboard/broken"));
        match row {
            Some(row) if row.contains("ErrImagePull") || row.contains("ImagePullBackOff") => Ok(()),
            _ => Err(page),
        }
    });
    let pods = admin.page("/list/core/v1/pods?namespace=dashboard");
    let pod = s.field("pods -l app=web", "{.items[0].metadata.name}");
    assert!(pods.contains(&format!("/object/core/v1/pods/dashboard/{pod}\">{pod}</a>")), "{pods}");
    let object = admin.page(&format!("/object/core/v1/pods/dashboard/{pod}"));
    assert!(
        object.contains("Started container") || object.contains("Container started"),
        "{object}"
    );
    let secret = admin.page("/object/core/v1/secrets/dashboard/hidden");
    assert!(secret.contains("hidden: 12 characters") && !secret.contains("aHVudGVyMg"), "{secret}");
    let nodes = admin.page("/list/core/v1/nodes");
    assert!(nodes.contains("control-plane") && nodes.contains("Ready"), "{nodes}");
    assert!(admin.page("/kinds").contains("/list/apps/v1/deployments"));
    assert!(admin.page("/measurements").contains("Mean duration of requests"));

    let looker = Dashboard::start(&s, &kubeconfig_of(&s, "looker"), "looker");
    let user = "system:serviceaccount:dashboard:looker";
    let denied = looker.page("/list/core/v1/nodes");
    assert!(
        denied.contains(&format!("User &quot;{user}&quot; cannot list resource &quot;nodes&quot;")),
        "{denied}"
    );
    assert!(looker.page("/list/core/v1/pods?namespace=dashboard").contains(&pod));
    assert!(
        looker.page("/object/core/v1/secrets/dashboard/hidden").contains("cannot get resource")
    );

    // A stranger on this machine has no key, and another web site has no name of this machine.
    let status = |args: &[&str]| {
        let all = [&["-sS", "-o", "/dev/null", "-w", "%{http_code}"], args].concat();
        s.on_node("curl", &all).ok()
    };
    assert_eq!(status(&[admin.address()]), "401");
    assert_eq!(status(&["-b", &looker.jar, admin.address()]), "401");
    assert_eq!(status(&["-b", &admin.jar, "-H", "Host: evil.example", admin.address()]), "403");
    assert_eq!(status(&["-b", &admin.jar, "-X", "DELETE", admin.address()]), "405");
    let args = ["dashboard", "--listen", "0.0.0.0:0"];
    let refused = s.on_node(&binary().display().to_string(), &args).refused();
    assert!(refused.contains("is not a loopback address"), "{refused}");
}

/// A browser of a WebDriver server.
struct Browser<'a> {
    s: &'a Session<'a>,
    _driver: Background,
    session: String,
}

impl<'a> Browser<'a> {
    fn start(s: &'a Session<'a>) -> Self {
        let port = "9515";
        let mut driver = Background::start(
            s.cluster.namespace.command("chromedriver", &[&format!("--port={port}")]),
        );
        driver.wait_for_line(|line| line.contains("was started successfully"));
        let mut browser =
            Self { s, _driver: driver, session: format!("http://127.0.0.1:{port}/session") };
        let profile = s.cluster.directory.join("chromium").display().to_string();
        let args = json!([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            format!("--user-data-dir={profile}")
        ]);
        let wanted = json!({"alwaysMatch": {"goog:chromeOptions": {"args": args, "binary": "/usr/bin/chromium"}}});
        let made = browser.post("", &json!({"capabilities": wanted}));
        browser.session = format!("{}/{}", browser.session, made["sessionId"].as_str().unwrap());
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (url, body) = (format!("{}{path}", self.session), body.to_string());
        let header = "content-type: application/json";
        let text =
            self.s.on_node("curl", &["-sS", "-m", "60", "-H", header, "-d", &body, &url]).ok();
        let mut answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let value = answer["value"].take();
        assert!(value.get("error").is_none(), "{path}: {value}");
        value
    }

    fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    fn click(&self, link: &str) {
        let found = self.post("/element", &json!({"using": "link text", "value": link}));
        let id = found.as_object().and_then(|map| map.values().next()?.as_str()).unwrap();
        self.post(&format!("/element/{id}/click"), &json!({}));
    }

    /// Presses keys one after another.
    fn press(&self, keys: &[&str]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})))
            .collect();
        self.post(
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}),
        );
    }

    fn save_picture(&self, path: &Path) {
        let text = self.s.on_node("curl", &["-sS", &format!("{}/screenshot", self.session)]).ok();
        let answer: Value = serde_json::from_str(&text).unwrap();
        std::fs::write(path.with_extension("base64"), answer["value"].as_str().unwrap()).unwrap();
        let shell = format!("base64 -d {0}.base64 > {0}.png", path.with_extension("").display());
        self.s.on_node("sh", &["-c", &shell]).ok();
    }
}

impl Drop for Browser<'_> {
    /// Ends the browser, which outlives its driver otherwise.
    fn drop(&mut self) {
        let _ = self.s.on_node("curl", &["-sS", "-m", "10", "-X", "DELETE", &self.session]);
    }
}

#[test]
#[ignore = "needs Chromium and chromedriver"]
fn browser_and_keyboard_reach_every_page() {
    const TAB: &str = "\u{e004}";
    const ENTER: &str = "\u{e007}";
    let s = shared("dashboard-browser");
    s.deploy("web", "app:1", 1);
    s.available("web");
    let dashboard = Dashboard::start(&s, &s.cluster.kubeconfig(), "browser");
    let browser = Browser::start(&s);
    browser.open(&dashboard.entrance);
    assert!(browser.text().contains("What does not run"), "{}", browser.text());
    let pod = s.field("pods -l app=web", "{.items[0].metadata.name}");
    browser.click("Pods");
    browser.click(&pod);
    assert!(browser.text().contains("Events"), "{}", browser.text());
    browser.click("app");
    assert!(browser.run("return document.title").as_str().unwrap().contains("Log of"));
    for page in
        ["Nodes", "Deployments", "Services", "Events", "All kinds", "Measurements", "Overview"]
    {
        browser.click(page);
        let style = browser.run("return getComputedStyle(document.querySelector('nav')).display");
        assert_eq!(style, "flex", "{page} has no style");
        assert_eq!(browser.run("return document.querySelector('nav a[aria-current]').text"), page);
    }
    let pictures = std::env::var_os("WINDLASS_PICTURES").map(PathBuf::from);
    if let Some(directory) = pictures {
        browser.save_picture(&directory.join("overview"));
        browser.click("Pods");
        browser.save_picture(&directory.join("pods"));
        browser.click("Overview");
    }
    // By the keyboard alone: past the link that skips and the overview itself, to the nodes.
    browser.press(&[TAB, TAB, TAB]);
    assert_eq!(browser.run("return document.activeElement.text"), "Nodes");
    browser.press(&[ENTER]);
    e2e::until("the page of the nodes", || match browser.run("return document.title").as_str() {
        Some(title) if title.starts_with("nodes") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
