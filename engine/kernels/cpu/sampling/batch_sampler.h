// Rows of logits to tokens, the rows in parallel and each by itself.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "../thread_pool.h"
#include "row_sampler.h"

namespace tandem {

struct LogitRows {
    const float* logits;
    size_t stride;  // elements from a row to the next one
    size_t rows, vocabulary;
    const RowSpec* specs;
    Changes changes;   // of all rows
    int64_t* tokens;
    double* logprobs;
    int64_t* top_ids;  // [rows][width]
    double* top_logprobs;
    size_t width;
};

class BatchSampler {
public:
    // Throws std::invalid_argument if the processor lacks the instruction set.
    BatchSampler(std::shared_ptr<ThreadPool> pool, const std::string& instruction_set);

    void sample(const LogitRows& rows);

private:
    struct Job;

    std::shared_ptr<ThreadPool> pool_;
    std::vector<RowSampler> threads_;
    std::vector<Changes> changes_;  // where each row's begin
};

}  // namespace tandem
