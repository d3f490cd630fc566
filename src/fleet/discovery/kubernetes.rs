//! The endpoints of a Kubernetes Service as workers.
//!
//! Everything is listed, then changes are watched until it is time for the next list, which is the net below the watch: one
//! that is silent, or tells less than it should, is wrong for an interval at most. That a watch ends, and that what it begins
//! with is too old, is as it should be. A server that does not answer takes nobody away.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Found, Origin};
use crate::config::KubernetesSource;
use crate::error::chain;
use crate::link::LinkLimits;
use crate::shutdown::{Lasting, Tasks};
use api::{Api, Refusal, shown};
use lines::Lines;
use object::{News, ObjectMeta};
use pace::Pace;
use slices::Slices;

mod api;
mod lines;
mod object;
mod pace;
mod slices;

/// The most of one event, in bytes: a slice of a thousand endpoints, Kubernetes' own bound, takes some 400 KB.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// A watch that lasted so long was a good one, though nothing changed.
const LASTING: Duration = Duration::from_secs(5);

/// The longest version that is believed.
const VERSION_MAX: usize = 256;

/// Follows the slices of a Service.
pub struct EndpointSlices {
    source: KubernetesSource,
    model: String,
    limits: LinkLimits,
    tasks: Tasks,
    tell: Sender<Found>,
    pace: Pace,
    slices: Slices,
    namespace: String,
    /// Why there is no watch.
    unwatched: Option<String>,
    last: Option<Found>,
}

/// Why a watch is over.
enum Ended {
    /// It is time for a list.
    Due,
    /// It ended, or broke off; the next one goes on where it was.
    Quietly,
    /// Only a list can tell how things are.
    Lost(Refusal),
}

impl EndpointSlices {
    /// Those of `source`, whose workers serve `model`. Connections are tasks of `tasks`.
    pub fn new(
        source: KubernetesSource,
        model: String,
        (limits, tasks): (LinkLimits, Tasks),
        tell: Sender<Found>,
    ) -> Self {
        let pace = Pace::new(source.interval.get());
        let (slices, namespace) = (Slices::default(), String::new());
        Self { source, model, limits, tasks, tell, pace, slices, namespace, unwatched: None, last: None }
    }
}

impl Lasting for EndpointSlices {
    /// Tells who is ready, whenever that changes. Ends with its listener.
    async fn work(&mut self) {
        while !self.tell.is_closed() {
            let api = Api::of(&self.source, self.limits, &self.tasks).await;
            let reason = match api {
                Ok(api) => self.follow_at(&api).await,
                Err(reason) => reason,
            };
            let kept = format!("the endpoints cannot be listed ({reason}): the workers that they named last are kept");
            self.send(Found { origin: Origin::Kubernetes, workers: None, trouble: vec![kept] }).await;
            sleep(self.pace.wait()).await;
        }
    }
}

impl EndpointSlices {
    /// Lists and watches until a list fails. Returns why.
    async fn follow_at(&mut self, api: &Api) -> String {
        api.namespace().clone_into(&mut self.namespace);
        while !self.tell.is_closed() {
            let due = Instant::now() + self.source.interval.get();
            let mut version = match api.list().await {
                Ok((slices, version)) => {
                    self.slices = slices;
                    version
                }
                Err(Refusal::Because(reason)) => return reason,
                Err(Refusal::Expired) => return "the list took so long that its second part is another's".to_owned(),
            };
            self.report().await;
            self.watch_until(due, api, &mut version).await;
        }
        String::new()
    }

    /// Watches, again and again, until everything must be listed.
    async fn watch_until(&mut self, due: Instant, api: &Api, version: &mut String) {
        loop {
            let begun = Instant::now();
            let ended = timeout_at(due, self.watch(api, version, due - begun)).await.unwrap_or(Ended::Due);
            if begun.elapsed() >= LASTING {
                self.pace.well();
            }
            match ended {
                Ended::Due => return,
                Ended::Quietly => {
                    sleep(self.pace.wait()).await;
                    if Instant::now() >= due {
                        return;
                    }
                }
                Ended::Lost(refusal) => {
                    if let Refusal::Because(reason) = refusal {
                        self.unwatched = Some(format!("changes of endpoints are seen late ({reason})"));
                        self.report().await;
                    }
                    return sleep(self.pace.wait()).await;
                }
            }
        }
    }

    /// Takes in what one watch tells.
    async fn watch(&mut self, api: &Api, version: &mut String, how_long: Duration) -> Ended {
        let mut body = match api.watch(version, how_long).await {
            Ok(body) => body,
            Err(refusal) => return Ended::Lost(refusal),
        };
        if self.unwatched.take().is_some() {
            self.report().await;
        }
        let mut lines = Lines::new(EVENT_BYTES_MAX);
        while let Some(Ok(frame)) = body.frame().await {
            let Some(data) = frame.data_ref() else { continue };
            let (mut is_news, mut lost) = (false, None);
            let fed = lines.feed(data, |line| match News::read(line) {
                _ if lost.is_some() => {}
                Ok(news) => match self.take(news, version) {
                    Ok(is_change) => is_news |= is_change,
                    Err(refusal) => lost = Some(refusal),
                },
                Err(error) => lost = Some(Refusal::Because(format!("an event cannot be read: {error}"))),
            });
            if is_news {
                self.report().await;
            }
            match (lost, fed) {
                (Some(refusal), _) => return Ended::Lost(refusal),
                (None, Err(error)) => return Ended::Lost(Refusal::Because(chain(&error))),
                (None, Ok(())) => {}
            }
        }
        Ended::Quietly
    }

    /// Takes in one event. Returns whether a slice has changed.
    fn take(&mut self, news: News, version: &mut String) -> Result<bool, Refusal> {
        let mut reached = |meta: &ObjectMeta| {
            if let Some(reached) = meta.resource_version.as_ref().filter(|version| version.len() <= VERSION_MAX) {
                version.clone_from(reached);
            }
        };
        let is_change = match news {
            News::Is(object) => {
                reached(&object.metadata);
                self.slices.put(object);
                true
            }
            News::Gone(object) => {
                reached(&object.metadata);
                self.slices.take_out(&object);
                true
            }
            News::Bookmark(object) => {
                reached(&object.metadata);
                false
            }
            News::Failed(status) if status.code == Some(410) => return Err(Refusal::Expired),
            News::Failed(status) => {
                let said = shown(&status.message.unwrap_or_default());
                return Err(Refusal::Because(format!("the API server ends the watch: {said}")));
            }
        };
        self.pace.well();
        Ok(is_change)
    }

    /// Tells who is ready as far as is known.
    async fn report(&mut self) {
        let (workers, mut trouble) = self.slices.workers(&self.source, &self.model);
        if self.slices.is_empty() {
            trouble.push(self.nobody());
        }
        trouble.extend(self.unwatched.clone());
        self.send(Found { origin: Origin::Kubernetes, workers: Some(workers), trouble }).await;
    }

    fn nobody(&self) -> String {
        let whose = match (&self.source.service, &self.source.selector) {
            (Some(service), _) => format!("of a Service `{}`", service.value),
            (None, selector) => {
                format!("that `{}` selects", selector.as_ref().map_or("", |selector| selector.as_str()))
            }
        };
        format!("there is no EndpointSlice {whose} in namespace `{}`: are the names right?", self.namespace)
    }

    async fn send(&mut self, found: Found) {
        if self.last.as_ref() != Some(&found) {
            // Without a listener there is nobody to tell, and the loop ends. Noted once it is told: a watch may be cut short
            // while it waits here.
            let _ = self.tell.send(found.clone()).await;
            self.last = Some(found);
        }
    }
}
