#include "batch_sampler.h"

namespace tandem {

struct BatchSampler::Job {
    const LogitRows& rows;
    const std::vector<Changes>& changes;
    std::vector<RowSampler>& threads;
    std::atomic<size_t> next{0};

    void run(int thread) {
        size_t i;
        while ((i = next.fetch_add(1, std::memory_order_relaxed)) < rows.rows) {
            const RowResult result{rows.tokens + i, rows.logprobs + i, rows.top_ids + i * rows.width,
                                   rows.top_logprobs + i * rows.width};
            threads[size_t(thread)].sample(rows.logits + i * rows.stride, rows.vocabulary, rows.specs[i],
                                           changes[i], result);
        }
    }
};

BatchSampler::BatchSampler(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set)
    : pool_(std::move(pool)) {
    for (int thread = 0; thread < pool_->threads(); ++thread) {
        threads_.emplace_back(row_kernels_named(instruction_set));
    }
}

void BatchSampler::sample(const LogitRows& rows) {
    Changes changes = rows.changes;
    changes_.clear();
    for (size_t i = 0; i < rows.rows; ++i) {
        const RowSpec& spec = rows.specs[i];
        changes_.push_back(changes);
        changes.ids += spec.additions;
        changes.additions += spec.additions;
        changes.history += spec.prompt + spec.output;
    }
    Job job{rows, changes_, threads_};
    pool_->run([](void* context, int thread) { static_cast<Job*>(context)->run(thread); }, &job, rows.rows == 1);
}

}  // namespace tandem
