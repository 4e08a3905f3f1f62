// What functions of this interface throw.
#ifndef MIGRAPHX_ERROR_HPP
#define MIGRAPHX_ERROR_HPP

#include <stdexcept>
#include <string>

#include "types.h"

namespace migraphx {

/// What was refused, with a status. Where memory is short, `std::bad_alloc` is thrown instead.
class error : public std::runtime_error {
public:
    error(mgx_status status, const std::string& what) : std::runtime_error(what), status_(status) {}
    mgx_status status() const noexcept { return status_; }

private:
    mgx_status status_;
};

} // namespace migraphx

#endif
