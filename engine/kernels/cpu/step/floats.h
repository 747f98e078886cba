// Working memory that is used again by every call, and grows only.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace tandem {

class Floats {
public:
    // Room for so many, 64-byte aligned; what was there is lost if it has to grow.
    float* room(size_t count) {
        if (count > count_) {
            memory_.reset();
            count_ = 0;
            memory_.reset(static_cast<float*>(operator new(count * sizeof(float), kAlignment)));
            count_ = count;
        }
        return memory_.get();
    }
    float* data() const { return memory_.get(); }

private:
    static constexpr std::align_val_t kAlignment{64};
    struct Free {
        void operator()(float* memory) const { operator delete(memory, kAlignment); }
    };
    std::unique_ptr<float, Free> memory_;
    size_t count_ = 0;
};

}  // namespace tandem
