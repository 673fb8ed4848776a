//! The page of a trace in a real browser.
#![allow(clippy::unwrap_used)]

#[path = "common/browser.rs"]
mod browser;
mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer::core::trace::{Begin, Event, Lifetimes, Observer, Trace, format};
use aquifer::core::{Caps, HostModel, Pool, QueueId, Request, Settings, Stamps, Storage};
use base64::Engine;
use browser::Browser;
use common::{Temporary, aquifer, required};
use serde_json::Value;

fn browser(name: &str) -> Option<Browser> {
    let browser = Browser::start(name);
    if browser.is_none() {
        assert!(!required("chromium"), "AQUIFER_REQUIRE=chromium, but chromedriver does not start");
        println!("skipped: chromedriver is not there (./check installs it)");
    }
    browser
}

/// Where pictures are kept for whoever looks at the results of the tests.
fn artefacts() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/artefacts");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The page of a trace; what the command said of it.
fn page(trace: &Path, output: &Path, more: &[&str]) -> String {
    let (trace, output) = (trace.to_str().unwrap(), output.to_str().unwrap());
    let made = aquifer(&[&["view", trace, "-o", output], more].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8_lossy(&made.stdout).into_owned()
}

/// The most that is charged at once, when, and everything that is live then.
fn peak(trace: &Trace) -> (u64, usize, Vec<(u64, String)>) {
    let (lifetimes, labels) = (Lifetimes::of(trace), trace.labels());
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (index, record) in trace.records.iter().enumerate() {
        match &record.event {
            Event::Allocate { size, .. } => now += size,
            Event::Free { size, .. } => now -= size,
            _ => {}
        }
        if now > most {
            (most, at) = (now, index);
        }
    }
    let live =
        lifetimes.all.iter().filter(|life| life.start <= at && life.end.is_none_or(|end| at < end));
    let live = live.map(|life| (life.size, labels[life.label.index()].clone())).collect();
    (most, at, live)
}

/// A decoder with layers, weights and a cache, traced with call stacks.
fn decoder(path: &Path) {
    use aquifer::prelude::*;
    use aquifer::trace::TraceOptions;
    let options = TraceOptions::new().file(path).with_stacks();
    let device = Device::builder().named("cpu").trace(options).open().unwrap();
    let weights: Vec<_> = (0..6)
        .map(|layer| {
            let _label = device.label(&format!("weights/{layer}"));
            Array::<f32>::ones(&device, [(layer + 1) * 100_000]).unwrap()
        })
        .collect();
    let mut cache = Vec::new();
    for token in 1..=60 {
        let hidden = {
            let _label = device.label("activations");
            weights[token % 6].map(|x| x * 0.5).unwrap()
        };
        let _label = device.label("kv cache");
        let grown = Array::<f32>::zeros(&device, [token * 4096]).unwrap();
        cache.push(grown);
        if cache.len() > 12 {
            cache.remove(0);
        }
        drop(hidden);
    }
    device.synchronize().unwrap();
}

/// The page of a real trace: no error, the peak to the byte, a click on the largest allocation tells
/// its label and size, the keyboard reaches the table, and the picture is kept.
#[test]
fn the_page_shows_who_holds_the_memory() {
    let Some(browser) = browser("page") else { return };
    let (file, html) = (Temporary::path("decoder.aqt"), Temporary::path("decoder.html"));
    decoder(&file.0);
    page(&file.0, &html.0, &[]);
    let trace = format::decode(&std::fs::read(&file.0).unwrap()).unwrap().trace;
    let (most, at, live) = peak(&trace);
    assert_eq!(most, trace.last_figures().unwrap().peak, "the trace's own peak");
    browser.open(&html.0);
    assert_eq!(browser.run("return Number(document.getElementById('summary').dataset.peak)"), most);
    let moment = browser.run("return {...document.getElementById('moment').dataset}");
    assert_eq!(moment["total"], most.to_string(), "the table adds up to the peak");
    assert_eq!(moment["event"], at.to_string());
    assert_eq!(moment["count"], live.len().to_string());
    click_on_the_largest(&browser, &live);
    reach_the_table(&browser);
    let map = browser.run("return {...document.getElementById('map').dataset}");
    assert_eq!(map["live"], most.to_string(), "every byte has its place");
    let homeless = "const ranges = trace.backed(trace.peakEvent);
        return trace.live(trace.peakEvent).filter(number => {
          const range = rangeOf(ranges, trace.block[number], trace.offset[number]);
          return !range || trace.offset[number] + trace.size[number] > range.to;
        }).length";
    assert_eq!(browser.run(homeless), 0, "each lies in memory that is there");
    let picture = base64::engine::general_purpose::STANDARD.decode(browser.screenshot()).unwrap();
    std::fs::write(artefacts().join("view.png"), picture).unwrap();
    assert_eq!(browser.errors(), Vec::<Value>::new());
}

/// What the page computes from far away is what it computes from near, and what a plain loop does.
#[test]
fn columns_agree_with_a_plain_loop() {
    let Some(browser) = browser("columns") else { return };
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let html = Temporary::path("columns.html");
    page(&testdata.join("decode_growing_kv.csv.gz"), &html.0, &["--replayed"]);
    browser.open(&html.0);
    let differing = browser.run(
        "const plain = (from, to, width) => {
           const most = new Float64Array(width).fill(-1);
           const now = new Float64Array(trace.bands);
           let total = 0;
           let reached = 0;
           const column = at => Math.min(width - 1, Math.floor((at - from) * width / (to - from)));
           const raise = (x, value) => { most[x] = Math.max(most[x], value); };
           for (let event = 0; event < trace.events && trace.time[event] <= to; event++) {
             if (trace.time[event] >= from) {
               const x = column(trace.time[event]);
               for (; reached <= x; reached++) raise(reached, total);
               total += trace.apply(event, now);
               raise(x, total);
             } else {
               total += trace.apply(event, now);
             }
           }
           for (; reached < width; reached++) raise(reached, total);
           return most;
         };
         const faults = [];
         const whole = trace.last - trace.first;
         for (const [a, b] of [[0, 1], [0.1, 0.95], [0.33, 0.34], [0.2, 0.9], [0.5, 0.5001]]) {
           const from = trace.first + a * whole;
           const to = trace.first + b * whole;
           const { totals, low, high } = trace.columns(from, to, 700);
           const want = plain(from, to, 700);
           const wrong = want.filter((value, x) => value !== totals[x]).length;
           if (wrong) faults.push([a, b, high - low, wrong]);
         }
         return faults;",
    );
    assert_eq!(differing, serde_json::json!([]), "range, events in sight, columns that differ");
    let events = browser.run("return trace.events").as_u64().unwrap();
    assert!(events > 100_000, "more than are played one by one: {events}");
}

/// One large array, whose memory came with it, has its place at the moment that the page opens on.
#[test]
fn the_newest_allocation_has_its_memory() {
    use aquifer::prelude::*;
    use aquifer::trace::TraceOptions;
    let Some(browser) = browser("newest") else { return };
    let (file, html) = (Temporary::path("newest.aqt"), Temporary::path("newest.html"));
    {
        let options = TraceOptions::new().file(&file.0);
        let device = Device::builder().named("cpu").trace(options).open().unwrap();
        drop(device.allocate_raw(64 << 20, Storage::Private).unwrap());
    }
    page(&file.0, &html.0, &[]);
    browser.open(&html.0);
    let map = browser.run("return {...document.getElementById('map').dataset}");
    assert_eq!((&map["live"], &map["free"]), (&"67108864".into(), &"0".into()));
}

/// Clicks into the picture where the largest allocation lies at the peak.
fn click_on_the_largest(browser: &Browser, live: &[(u64, String)]) {
    // Of equal ones the first, as the page does below.
    let (size, label) = live.iter().rev().max_by_key(|live| live.0).unwrap();
    // Where the page draws it: its band lies on those below it, and it on those made before it.
    let at = browser.run(
        "const number = trace.live(trace.peakEvent)
           .reduce((best, one) => trace.size[one] > trace.size[best] ? one : best);
         const chart = document.getElementById('chart');
         const at = name => Number(chart.dataset[name]);
         const bands = trace.at(trace.peakEvent);
         let height = trace.size[number] / 2;
         for (let band = 0; band < trace.band[number]; band++) height += bands[band];
         for (const other of trace.live(trace.peakEvent)) {
           const below = other < number && trace.band[other] === trace.band[number];
           if (below) height += trace.size[other];
         }
         const box = chart.getBoundingClientRect();
         const part = (trace.time[trace.peakEvent] - at('from')) / (at('to') - at('from'));
         return [
           box.left + 1 + at('left') + Math.floor(part * at('width')) + 0.5,
           box.top + 1 + at('bottom') - height / at('most') * (at('bottom') - at('top')),
         ];",
    );
    browser.click(at[0].as_f64().unwrap(), at[1].as_f64().unwrap());
    let tip = browser.run("return document.getElementById('tip').innerText");
    let tip = tip.as_str().unwrap();
    let told = [label.as_str(), "thread", "queue", "view.rs:"];
    assert!(told.iter().all(|part| tip.contains(part)), "hovering tells: {tip}");
    let details = browser.run("return document.getElementById('details').innerText");
    let details = details.as_str().unwrap();
    assert!(details.contains(label.as_str()), "{details} lacks {label}");
    assert!(details.contains(&format!("({size} bytes")), "{details} lacks {size}");
    assert!(details.contains("view.rs:"), "the call site is told: {details}");
}

/// From the top of the page, Tab comes to the table, and Enter chooses a row.
fn reach_the_table(browser: &Browser) {
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)");
    let in_row = "return document.activeElement.closest('tbody tr') !== null";
    let mut tabs = 0;
    while browser.run(in_row) != true {
        browser.key("\u{e004}");
        tabs += 1;
        assert!(tabs < 30, "Tab does not reach the table");
    }
    browser.key("\u{e007}");
    let chosen = browser.run("return document.querySelectorAll('tr[aria-selected=true]').length");
    assert_eq!(chosen, 1);
    browser.run("document.getElementById('chart').focus()");
    let span = "const d = document.getElementById('chart').dataset; return d.to - d.from";
    let whole = browser.run(span).as_f64().unwrap();
    browser.key("+");
    browser.run("drawChart()");
    assert!(browser.run(span).as_f64().unwrap() < whole, "the keyboard zooms");
}

#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<(format::Encoder, u64)>>);

impl Observer for Kept {
    fn record(&mut self, event: &Event) {
        let mut kept = self.0.lock().unwrap();
        kept.1 += 1000;
        let time_ns = kept.1;
        kept.0.write(time_ns, (0, 0), event);
    }
}

/// A trace of about a million events: half a million allocations of all sizes under 30 labels.
fn million(path: &Path) {
    let (device, caps) = (HostModel::quick(), Caps::model());
    let settings = Settings::for_working_set(1 << 40, 1 << 41);
    let mut pool = Pool::new(&caps, settings);
    let kept = Kept::default();
    let begin = Begin::new("aquifer test", &caps, settings);
    pool.start_observing(Box::new(kept.clone()), begin);
    let labels: Vec<_> =
        (0..30).map(|label| pool.label(Default::default(), &format!("layer {label}"))).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut live = Vec::new();
    for _ in 0..500_000 {
        let size = 1 << random.u32(6..24);
        let request = Request::new(random.u64(size / 2..size), Storage::Private)
            .labelled(labels[random.usize(..30)])
            .on(QueueId(0));
        live.push(pool.allocate(&device, request).unwrap());
        if live.len() > random.usize(1000..3000) {
            let gone = live.swap_remove(random.usize(..live.len()));
            pool.free(&device, gone, Stamps::default());
        }
    }
    live.into_iter().for_each(|gone| pool.free(&device, gone, Stamps::default()));
    pool.stop_observing();
    std::fs::write(path, kept.0.lock().unwrap().0.take()).unwrap();
}

/// A million events load in under 3 s, and a drag is followed at once.
#[test]
fn a_million_events_load_in_time() {
    let Some(browser) = browser("million") else { return };
    let (file, html) = (Temporary::path("million.aqt"), Temporary::path("million.html"));
    million(&file.0);
    let said = page(&file.0, &html.0, &[]);
    println!("{said}");
    let mut took = browser.open(&html.0);
    if took >= Duration::from_secs(3) {
        // Another test had the machine: once more, alone.
        took = browser.open(&html.0);
    }
    let events = browser.run("return trace.events").as_u64().unwrap();
    assert!(events >= 1_000_000, "{events}");
    println!("{events} events: ready after {:.2} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(3), "ready after {took:?}");
    let frames = browser.run(
        "const times = [];
         for (const part of [1, 0.5, 0.1, 0.05, 0.01, 0.001]) {
           const span = (trace.last - trace.first) * part;
           view = { from: trace.first + span * 0.3, to: trace.first + span * 0.3 + span };
           const start = performance.now();
           drawChart();
           times.push(Math.round(performance.now() - start));
         }
         return times;",
    );
    println!("a frame at six zooms takes {frames} ms");
    let worst = frames.as_array().unwrap().iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    assert!(worst < 250.0, "a frame takes {worst} ms");
    assert_eq!(browser.errors(), Vec::<Value>::new());
}

/// Traces of other systems are drawn too: PyTorch's own blocks, and where aquifer would have put
/// everything.
#[test]
fn other_systems_traces_are_drawn() {
    let Some(browser) = browser("others") else { return };
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    for (name, more) in [
        ("two_streams_snapshot.pickle", &[][..]),
        ("two_streams.csv.gz", &[]),
        ("two_streams.csv.gz", &["--replayed"]),
    ] {
        let html = Temporary::path(&format!("{name}{}.html", more.len()));
        page(&testdata.join(name), &html.0, more);
        browser.open(&html.0);
        // At most 274 MiB, to the byte: what was asked, in units of 512 bytes (or of pages).
        let peak = browser.run("return trace.peak").as_u64().unwrap();
        assert!((287_000_000..290_000_000).contains(&peak), "{name}: {peak}");
        let placed = browser.run("return document.getElementById('placed').innerText");
        let known = placed.as_str().unwrap().contains("held in");
        assert_eq!(known, name.ends_with("pickle") || !more.is_empty(), "{name}: {placed}");
        assert_eq!(browser.errors(), Vec::<Value>::new());
    }
}
