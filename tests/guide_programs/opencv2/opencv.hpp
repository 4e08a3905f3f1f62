// Stands in for OpenCV in the programs of guides: what they use of it, over one picture that is made up.
#ifndef GUIDE_PROGRAMS_OPENCV_HPP
#define GUIDE_PROGRAMS_OPENCV_HPP

#include <cmath>
#include <memory>
#include <string>
#include <vector>

enum { CV_32F = 5 };

namespace cv {

struct Size {
    Size(int w, int h) : width(w), height(h) {}
    int width, height;
};

struct Scalar {
    Scalar(double a = 0, double b = 0, double c = 0) : val{a, b, c} {}
    double val[3];
};

struct Mat {
    Mat() = default;
    Mat(int, const int*, int, void* given) : data(static_cast<unsigned char*>(given)) {}
    int rows = 0, cols = 0;
    unsigned char* data = nullptr;
    std::shared_ptr<std::vector<float>> own;
};

/// 320 times 240 points of three channels, whatever the file.
inline Mat imread(const std::string&, int = 1)
{
    Mat made;
    made.rows = 240;
    made.cols = 320;
    made.own = std::make_shared<std::vector<float>>();
    for(int k = 0; k < 3 * 240 * 320; k++)
        made.own->push_back(static_cast<float>(k * 37 % 256));
    made.data = reinterpret_cast<unsigned char*>(made.own->data());
    return made;
}

namespace dnn {

/// Pictures as [n, c, h, w] in float, each point that of the nearest in the original, less the mean, times the scale.
inline void blobFromImages(const std::vector<Mat>& images, Mat& blob, double scale, Size size, Scalar mean, bool, bool)
{
    blob.own = std::make_shared<std::vector<float>>();
    for(const Mat& image : images)
        for(int c = 0; c < 3; c++)
            for(int y = 0; y < size.height; y++)
                for(int x = 0; x < size.width; x++) {
                    const int row = y * image.rows / size.height, column = x * image.cols / size.width;
                    const float point = (*image.own)[static_cast<std::size_t>(3 * (row * image.cols + column) + c)];
                    blob.own->push_back(static_cast<float>((point - mean.val[c]) * scale));
                }
    blob.data = reinterpret_cast<unsigned char*>(blob.own->data());
}

} // namespace dnn
} // namespace cv

#endif
