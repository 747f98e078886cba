// Called by native_tests.cpp.
#pragma once

#include <functional>
#include <string>

using Expect = std::function<void(bool, const std::string&)>;

void check_dense(const Expect& expect);
