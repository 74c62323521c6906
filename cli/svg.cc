// The chart writer; see svg.h.
#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace swiglu::cli {

namespace {

constexpr double kWidth = 760, kLeft = 78, kRight = 24, kTop = 80, kPanel = 190, kGap = 56, kLegendRow = 20;
// Told apart by people who do not see all colours (Okabe and Ito), dark enough for white.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#7a5c00", "#56b4e9", "#444444", "#e69f00"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

std::string words(double x, double y, std::string_view look, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, look, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view look) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, look);
}

std::string point_look(std::string_view colour, bool hollow) {
  if (!hollow) return fmt::format("r=\"3.4\" fill=\"{}\"", colour);
  return fmt::format("r=\"3.4\" fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.6\"", colour);
}

/// All series by name, in the order of their first appearance: the legend and the colours.
std::vector<ChartSeries> legend_of(const Chart& chart) {
  std::vector<ChartSeries> legend;
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartSeries& series : panel.series) {
      const bool known = std::any_of(legend.begin(), legend.end(),
                                     [&series](const ChartSeries& other) { return other.name == series.name; });
      if (!known) legend.push_back({series.name, {}, false, series.hollow});
    }
  }
  return legend;
}

/// A range of values with the numbers that are written beside it.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<double> marks;
  [[nodiscard]] double part(double value) const {
    if (!logarithmic) return (value - low) / (high - low);
    return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  }
};

Axis x_axis(const std::vector<double>& ticks) {
  Axis axis{1, 2, true, ticks};
  if (ticks.empty()) return axis;
  axis.low = *std::min_element(ticks.begin(), ticks.end());
  axis.high = *std::max_element(ticks.begin(), ticks.end());
  if (axis.low == axis.high) {  // one token count: in the middle
    axis.low /= 2;
    axis.high *= 2;
  }
  return axis;
}

Axis y_axis(const ChartPanel& panel) {
  double least = HUGE_VAL, most = panel.reference;
  for (const ChartSeries& series : panel.series) {
    for (const auto& [x, y] : series.points) {
      least = std::min(least, y);
      most = std::max(most, y);
    }
  }
  Axis axis{0, 1, panel.log_y, {}};
  if (!(least <= most) || most <= 0) return axis;
  if (!panel.log_y && least >= panel.low && most > panel.low) axis.low = panel.low;
  if (panel.log_y) {  // 1, 2 and 5 of each power of ten, one beyond the values on both sides
    for (int power = -12; power < 12; ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) axis.marks.push_back(digit * std::pow(10.0, power));
    }
    const auto above = std::lower_bound(axis.marks.begin(), axis.marks.end(), most);
    const auto below = std::upper_bound(axis.marks.begin(), axis.marks.end(), least) - 1;
    axis.marks = std::vector<double>(below, above + 1);
    axis.low = axis.marks.front();
    axis.high = axis.marks.back() > axis.low ? axis.marks.back() : 2 * axis.low;
    return axis;
  }
  double step = std::pow(10.0, std::floor(std::log10(most - axis.low)));
  while ((most - axis.low) / step < 4) step /= 2;
  for (double mark = axis.low; mark < most + step * 0.999; mark += step) axis.marks.push_back(mark);
  axis.high = axis.marks.back();
  return axis;
}

void draw_panel(std::string& out, const ChartPanel& panel, const Chart& chart, const std::vector<ChartSeries>& legend,
                double top) {
  const Axis x = x_axis(chart.ticks), y = y_axis(panel);
  const double right = kWidth - kRight, bottom = top + kPanel;
  const auto at_x = [&](double value) { return kLeft + x.part(value) * (right - kLeft); };
  const auto at_y = [&](double value) { return bottom - y.part(value) * kPanel; };
  out += words(kLeft, top - 9, "font-size=\"13\" font-weight=\"bold\" fill=\"#222222\"", panel.title);
  for (const double mark : y.marks) {
    out += line(kLeft, at_y(mark), right, at_y(mark), "stroke=\"#e3e3e3\"");
    out += words(kLeft - 8, at_y(mark) + 4, "font-size=\"12\" text-anchor=\"end\" fill=\"#444444\"",
                 fmt::format("{:.6g}{}", mark, panel.unit));
  }
  for (const double tick : x.marks) {
    out += line(at_x(tick), top, at_x(tick), bottom, "stroke=\"#f0f0f0\"");
    out += words(at_x(tick), bottom + 17, "font-size=\"12\" text-anchor=\"middle\" fill=\"#444444\"",
                 fmt::format("{:.6g}", tick));
  }
  out += line(kLeft, bottom, right, bottom, "stroke=\"#888888\"");
  if (panel.reference != 0) {
    out +=
        line(kLeft, at_y(panel.reference), right, at_y(panel.reference), "stroke=\"#222222\" stroke-dasharray=\"5 4\"");
    out += words(right - 4, at_y(panel.reference) - 5, "font-size=\"11\" text-anchor=\"end\" fill=\"#222222\"",
                 panel.reference_name);
  }
  for (const ChartSeries& series : panel.series) {
    const auto entry = std::find_if(legend.begin(), legend.end(),
                                    [&series](const ChartSeries& other) { return other.name == series.name; });
    const auto index = static_cast<std::size_t>(entry - legend.begin());
    const std::string_view colour = kColours[index % kColours.size()];
    std::string points;
    for (const auto& [px, py] : series.points) points += fmt::format("{:.1f},{:.1f} ", at_x(px), at_y(py));
    if (!points.empty()) points.pop_back();
    out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n", points, colour,
                       series.dashed ? "1.2" : "2.2", series.dashed ? " stroke-dasharray=\"4 3\"" : "");
    if (series.dashed) continue;
    for (const auto& [px, py] : series.points) {
      out +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" {}><title>{}: {:.6g}: {:.4g}{}</title></circle>\n", at_x(px),
                      at_y(py), point_look(colour, series.hollow), escaped(series.name), px, py, panel.unit);
    }
  }
}

}  // namespace

std::string draw(const Chart& chart) {
  const std::vector<ChartSeries> legend = legend_of(chart);
  const double panels_end = kTop + static_cast<double>(chart.panels.size()) * (kPanel + kGap) - kGap;
  const double height = panels_end + 62 + kLegendRow * static_cast<double>(legend.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" role=\"img\" aria-label=\"{2}\">\n"
      "<rect x=\"0.5\" y=\"0.5\" width=\"{3}\" height=\"{4:.0f}\" rx=\"6\" fill=\"#ffffff\" stroke=\"#d0d0d0\"/>\n",
      kWidth, height, escaped(chart.title), kWidth - 1, height - 1);
  out += words(20, 24, "font-size=\"15\" font-weight=\"bold\" fill=\"#111111\"", chart.title);
  out += words(20, 42, "font-size=\"11\" fill=\"#555555\"", chart.subtitle);
  double top = kTop;
  for (const ChartPanel& panel : chart.panels) {
    draw_panel(out, panel, chart, legend, top);
    top += kPanel + kGap;
  }
  out += words((kLeft + kWidth - kRight) / 2, panels_end + 35,
               "font-size=\"12\" text-anchor=\"middle\" fill=\"#444444\"", chart.x_title);
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const double y = panels_end + 62 + kLegendRow * static_cast<double>(i);
    const std::string_view colour = kColours[i % kColours.size()];
    out += line(kLeft, y - 4, kLeft + 26, y - 4, fmt::format("stroke=\"{}\" stroke-width=\"2.2\"", colour));
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" {}/>\n", kLeft + 13, y - 4,
                       point_look(colour, legend[i].hollow));
    out += words(kLeft + 34, y, "font-size=\"12\" fill=\"#222222\"", legend[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace swiglu::cli
