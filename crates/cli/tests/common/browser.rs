//! A browser to be driven: Chromium through its own driver, over WebDriver's HTTP.
#![allow(unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A Chromium with one window; it closes when it is dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: std::path::PathBuf,
}

impl Browser {
    /// Starts one; `None` where there is no driver.
    pub fn start(name: &str) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let profile =
            std::env::temp_dir().join(format!("aquifer-browser-{}-{name}", std::process::id()));
        let mut browser = Self { driver, port, session: String::new(), profile };
        let until = Instant::now() + Duration::from_secs(20);
        while browser.try_call("GET", "/status", &Value::Null).is_none() {
            assert!(Instant::now() < until, "chromedriver does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        let profile = format!("--user-data-dir={}", browser.profile.display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1400,1500",
            &profile,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let session = browser.call("POST", "/session", &wanted);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
        let body = if method == "GET" { String::new() } else { body.to_string() };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        let mut reader = BufReader::new(stream);
        let mut len = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().ok();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; len?];
        reader.read_exact(&mut body).ok()?;
        serde_json::from_slice(&body).ok()
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_call(method, path, body).unwrap_or_else(|| panic!("{method} {path}"));
        let value = answer["value"].clone();
        assert!(value.get("error").is_none(), "{method} {path}: {value}");
        value
    }

    fn post(&self, what: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}/{what}", self.session), body)
    }

    /// Opens a file and waits until the page says that it is ready; how long that took.
    pub fn open(&self, path: &std::path::Path) -> Duration {
        let start = Instant::now();
        self.post("url", &json!({ "url": format!("file://{}", path.display()) }));
        while self.run("return document.documentElement.dataset.ready ?? null").is_null() {
            assert!(start.elapsed() < Duration::from_secs(60), "the page is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        start.elapsed()
    }

    /// Runs a function's body in the page.
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Presses and releases the pointer at a point of the window.
    pub fn click(&self, x: f64, y: f64) {
        let moved = json!({
            "type": "pointerMove", "duration": 0, "x": x as i64, "y": y as i64,
            "origin": "viewport",
        });
        let down = json!({ "type": "pointerDown", "button": 0 });
        let up = json!({ "type": "pointerUp", "button": 0 });
        self.post(
            "actions",
            &json!({ "actions": [{
                "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" },
                "actions": [moved, down, up],
            }]}),
        );
    }

    /// Presses and releases a key.
    pub fn key(&self, key: &str) {
        self.post(
            "actions",
            &json!({ "actions": [{
                "type": "key", "id": "keyboard",
                "actions": [{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }],
            }]}),
        );
    }

    /// What the page wrote to the console at the level of an error.
    pub fn errors(&self) -> Vec<Value> {
        let log = self.post("se/log", &json!({ "type": "browser" }));
        let log = log.as_array().cloned().unwrap_or_default();
        log.into_iter().filter(|entry| entry["level"] == "SEVERE").collect()
    }

    /// The window as a PNG in base64.
    pub fn screenshot(&self) -> String {
        let path = format!("/session/{}/screenshot", self.session);
        self.call("GET", &path, &Value::Null).as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let path = format!("/session/{}", self.session);
            let _ = self.try_call("DELETE", &path, &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
