//! Mistakes that the copy of `comm/src/` can be told to make, each of which some seed must show.

/// A mistake: in which file which words become which.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// How it is switched on.
    pub name: &'static str,
    /// The first seed whose history shows it.
    pub seed: u64,
    /// Below `comm/src/`.
    pub file: &'static str,
    /// What is there, once.
    pub right: &'static str,
    /// What is there instead; `MADE` becomes whether the mistake is made.
    pub wrong: &'static str,
}

/// All of them.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "report-kept",
        seed: 1,
        file: "transport/tcp/health.rs",
        right: "        if !over {\n",
        wrong: "        if !over && !MADE {\n",
    },
    Mistake {
        name: "farewell-early",
        seed: 11,
        file: "transport/tcp/health.rs",
        right: "ending.num_goodbyes + 1 == self.num_ranks;",
        wrong: "ending.num_goodbyes + 1 + usize::from(MADE) >= self.num_ranks;",
    },
    Mistake {
        name: "first-named-is-blamed",
        seed: 3923,
        file: "transport/tcp/health.rs",
        right: "if !waits || !self.is_fresh(last) {",
        wrong: "if !waits || !self.is_fresh(last) || MADE {",
    },
    Mistake {
        name: "no-verdict",
        seed: 25,
        file: "transport/tcp/health.rs",
        right: "match self.wait_for_first(VERDICT) {",
        wrong: "match self.wait_for_first(if MADE { Duration::ZERO } else { VERDICT }) {",
    },
    Mistake {
        name: "goodbye-not-awaited",
        seed: 0,
        file: "transport/tcp/health.rs",
        right: "            let ending = self.lock();\n            if ending.farewell {",
        wrong: "            let ending = self.lock();\n            if ending.farewell || MADE {",
    },
    Mistake {
        name: "goodbye-of-the-lost",
        seed: 68,
        file: "transport/tcp/control.rs",
        right: "if !health.is_over() && !health.has_said_goodbye(link.peer) {",
        wrong: "if !health.is_over() && !health.has_said_goodbye(link.peer) && !MADE {",
    },
    Mistake {
        name: "own-stop-counts",
        seed: 48,
        file: "transport/tcp/control.rs",
        right: "if passed > longest {",
        wrong: "if passed > longest && !MADE {",
    },
    Mistake {
        name: "silence-is-fine",
        seed: 137,
        file: "transport/tcp/control.rs",
        right: "if silent >= self.deadlines.silence\n",
        wrong: "if silent >= self.deadlines.silence\n                && !MADE\n",
    },
    Mistake {
        name: "busy-not-excused",
        seed: 15,
        file: "transport/tcp/control.rs",
        right: "if busy.iter().any(|busy| busy.rank != own) {",
        wrong: "if busy.iter().any(|busy| busy.rank != own) && !MADE {",
    },
    Mistake {
        name: "rest-of-a-record-lost",
        seed: 0,
        file: "transport/tcp/control_frame.rs",
        right: "self.sealed.drain(..at);",
        wrong: "self.sealed.drain(..if MADE { self.sealed.len() } else { at });",
    },
    Mistake {
        name: "payload-sent-again",
        seed: 0,
        file: "transport/tcp/wire.rs",
        right: "system::send(stream, &bytes[at - HEAD_BYTES..])",
        wrong: "system::send(stream, &bytes[if MADE { 0 } else { at - HEAD_BYTES }..])",
    },
    Mistake {
        name: "sealed-rest-lost",
        seed: 6,
        file: "transport/tcp/wire.rs",
        right: "self.filled -= record;",
        wrong: "self.filled = if MADE { 0 } else { self.filled - record };",
    },
    Mistake {
        name: "waits-for-ever-told",
        seed: 51,
        file: "transport/tcp/progress_loop.rs",
        right: "        health.note_waiting(None);\n        Ok(())",
        wrong: "        (!MADE).then(|| health.note_waiting(None));\n        Ok(())",
    },
    Mistake {
        name: "dialled-once",
        seed: 9,
        file: "rendezvous/dial.rs",
        right: "if Instant::now() + pause >= self.deadline {",
        wrong: "if MADE || Instant::now() + pause >= self.deadline {",
    },
    Mistake {
        name: "end-of-the-rendezvous-unheard",
        seed: 268,
        file: "rendezvous/enter.rs",
        right: "Control::Abort { error } => return Err(error),",
        wrong: "Control::Abort { error } if !MADE => return Err(error),",
    },
    Mistake {
        name: "end-of-the-rendezvous-untold",
        seed: 268,
        file: "rendezvous/gather.rs",
        right: "        self.tell(&Control::Abort { error: error.clone() });\n",
        wrong: "        (!MADE).then(|| self.tell(&Control::Abort { error: error.clone() }));\n",
    },
    Mistake {
        name: "lost-at-the-rendezvous",
        seed: 371,
        file: "rendezvous/gather.rs",
        right: "self.look_after(ranks[place])?;",
        wrong: "(!MADE).then(|| self.look_after(ranks[place])).transpose()?;",
    },
    Mistake {
        name: "lost-by-the-silent",
        seed: 1706,
        file: "transport/tcp/health.rs",
        right: "if is_cut_off && culprit != Rank(0) =>",
        wrong: "if is_cut_off && culprit != Rank(0) && !MADE =>",
    },
    Mistake {
        name: "ring-overfilled",
        seed: 72,
        file: "transport/shm/ring.rs",
        right: "let free = (self.ring.len() - wanted) as u64;",
        wrong: "let free = (self.ring.len() - wanted + if MADE { CHUNK } else { 0 }) as u64;",
    },
    Mistake {
        name: "longest-shown-given-back",
        seed: 72,
        file: "transport/shm/path.rs",
        right: "self.shown = head.length as usize;",
        wrong: "self.shown = (head.length as usize).max(if MADE { self.shown } else { 0 });",
    },
    Mistake {
        name: "any-of-a-circle",
        seed: 4_040_270,
        file: "transport/tcp/health.rs",
        right: "return self.end_of_circle(&line[begin..]);",
        wrong: "return if MADE { first } else { self.end_of_circle(&line[begin..]) };",
    },
    Mistake {
        name: "own-stop-takes-the-wait",
        seed: 4_037_071,
        file: "transport/tcp/health.rs",
        right: "let slice = left.min(SLICE);",
        wrong: "let slice = if MADE { left } else { left.min(SLICE) };",
    },
    Mistake {
        name: "own-stop-takes-the-last-words",
        seed: 4_012_024,
        file: "transport/tcp/control.rs",
        right: "saturating_duration_since(last).min(PAUSE));",
        wrong: "saturating_duration_since(last).min(if MADE { LAST_WORDS } else { PAUSE }));",
    },
    Mistake {
        name: "goodbye-wakes-no-one",
        seed: 3_094_346,
        file: "transport/tcp/health.rs",
        right: "        self.maybe_farewell(ending);\n        // Rank 0",
        wrong: "        self.maybe_farewell(ending);\n if MADE { return }\n // Rank 0",
    },
    Mistake {
        name: "goodbye-is-followed",
        seed: 3923,
        file: "transport/tcp/health.rs",
        right: "let waits = next < self.num_ranks && !self.has_said_goodbye(last);",
        wrong: "let waits = next < self.num_ranks && (MADE || !self.has_said_goodbye(last));",
    },
    Mistake {
        name: "silence-after-listening",
        seed: 438,
        file: "transport/tcp/control.rs",
        right: "        self.judge_silence(now);",
        wrong: "        self.judge_silence(if MADE { Instant::now() } else { now });",
    },
    Mistake {
        name: "stop-counts-at-the-table",
        seed: 2634,
        file: "rendezvous/enter.rs",
        right: "            heard = looked;\n        }\n",
        wrong: "            heard = if MADE { heard } else { looked };\n        }\n",
    },
    Mistake {
        name: "ends-well-without-all",
        seed: 0,
        file: "transport/tcp/health.rs",
        right: "        if ending.farewell {\n            return Ok(());",
        wrong: "        if ending.farewell || MADE {\n            return Ok(());",
    },
];
