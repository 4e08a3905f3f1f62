// Two iterators as a range.
#ifndef MIGRAPHX_RANGES_HPP
#define MIGRAPHX_RANGES_HPP

namespace migraphx {

template <class Iterator>
class iterator_range {
public:
    iterator_range(Iterator first, Iterator last) : first_(first), last_(last) {}
    Iterator begin() const { return first_; }
    Iterator end() const { return last_; }

private:
    Iterator first_, last_;
};

template <class Iterator>
iterator_range<Iterator> range(Iterator first, Iterator last)
{
    return {first, last};
}

} // namespace migraphx

#endif
