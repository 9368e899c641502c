//! The requests inside the engine: by job, by the owner's name for the request, and the state of those that run.

use core::hash::BuildHasher;
use core::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::ids::{JobId, RunningId};
use crate::input::RequestId;
use crate::job::{Job, Running};
use crate::slab::Slab;

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: Slab<JobId, Job>,
    running: Slab<RunningId, Running>,
    /// By [`Job::id`]. The table keeps only the jobs' ids, because with many requests its memory decides how long a lookup
    /// takes.
    by_request: HashTable<JobId>,
    hasher: DefaultHashBuilder,
}

impl Jobs {
    /// Adds a job, whose request has no job yet.
    pub(crate) fn insert(&mut self, job: Job) -> JobId {
        let hash = self.hasher.hash_one(job.id);
        let id = self.all.insert(job);
        let (all, hasher) = (&self.all, &self.hasher);
        self.by_request.insert_unique(hash, id, |&other| hasher.hash_one(all[other].id));
        id
    }

    pub(crate) fn find(&self, request: RequestId) -> Option<JobId> {
        let is_same = |&job: &JobId| self.all[job].id == request;
        let found = self.by_request.find(self.hasher.hash_one(request), is_same);
        found.copied()
    }

    /// Takes out a job that waits.
    pub(crate) fn remove(&mut self, id: JobId) -> Job {
        self.forget_request(id);
        let job = self.all.remove(id);
        debug_assert!(job.is_waiting(), "invariant: a job that runs is ended");
        job
    }

    /// Drops a job, in place.
    pub(crate) fn discard(&mut self, id: JobId) {
        self.forget_request(id);
        self.end(id);
        self.all.discard(id);
    }

    fn forget_request(&mut self, id: JobId) {
        let hash = self.hasher.hash_one(self.all[id].id);
        if let Ok(found) = self.by_request.find_entry(hash, |&other| other == id) {
            found.remove();
        }
    }

    /// `id`, which waits, runs.
    pub(crate) fn start(&mut self, id: JobId, running: Running) {
        self.all[id].running = Some(self.running.insert(running));
    }

    /// `id` no longer runs.
    pub(crate) fn end(&mut self, id: JobId) {
        if let Some(running) = self.all[id].running.take() {
            self.running.discard(running);
        }
    }

    /// The state of `id` while it runs; `None`: it waits.
    pub(crate) fn running(&self, id: JobId) -> Option<&Running> {
        Some(&self.running[self.all[id].running?])
    }

    pub(crate) fn running_mut(&mut self, id: JobId) -> Option<&mut Running> {
        Some(&mut self.running[self.all[id].running?])
    }

    /// Requests with a job.
    pub(crate) fn requests(&self) -> usize {
        self.by_request.len()
    }

    /// Requests that run.
    pub(crate) const fn running_len(&self) -> usize {
        self.running.len()
    }

    pub(crate) const fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.all.iter()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = JobId> {
        self.all.ids()
    }
}

impl Index<JobId> for Jobs {
    type Output = Job;

    fn index(&self, id: JobId) -> &Job {
        &self.all[id]
    }
}

impl IndexMut<JobId> for Jobs {
    fn index_mut(&mut self, id: JobId) -> &mut Job {
        &mut self.all[id]
    }
}
